-- Slots: leases, waiting requests, and which one is next. The order is that of gateway/admission/backend_queue.py.

local SETTLE = 3000 -- ms in which gateways that served alone may rejoin

local asking -- the waiter of the operation under way: its grant is in the answer, so no message is sent

-- leases -------------------------------------------------------------------------------------------------------------

local function used(backend)
  return total(key('inflight', backend))
end

local function capacity(backend)
  return tonumber(call('HGET', prefix .. 'rooms', backend) or 0)
end

local function used_by(gateway, backend)
  return tonumber(call('HGET', key('inflight', backend), gateway) or 0)
end

-- {{gateway, slots}, ...}
local function holders(backend)
  local flat, found = call('HGETALL', key('inflight', backend)), {}
  for index = 1, #flat, 2 do
    found[#found + 1] = { flat[index], tonumber(flat[index + 1]) }
  end
  return found
end

-- Slots of each other gateway that holds any.
local function slots_of_others(backend)
  local found = {}
  for _, holder in ipairs(holders(backend)) do
    if holder[1] ~= me then
      found[#found + 1] = holder[2]
    end
  end
  return found
end

-- Does a gateway hold more than its share? The others must know, because they may use fewer slots if Redis goes away.
local function is_uneven(backend)
  local gateways = call('ZCARD', prefix .. 'gateways')
  if gateways < 2 then
    return false
  end
  local even = math.max(1, math.floor(capacity(backend) / gateways))
  for _, holder in ipairs(holders(backend)) do
    if holder[2] > even then
      return true
    end
  end
  return false
end

local touched = {} -- backend -> was it uneven before this batch

local function touch(backend)
  if touched[backend] == nil then
    touched[backend] = is_uneven(backend)
  end
end

local function publish_touched()
  local loads = {}
  for backend, uneven in pairs(touched) do
    if uneven or is_uneven(backend) then
      loads[#loads + 1] = { backend, holders(backend) }
    end
  end
  if #loads > 0 then
    call('PUBLISH', prefix .. 'all', cmsgpack.pack({ 'held', me, loads }))
  end
end

local function is_settling()
  local ends = call('HGET', prefix .. 'settling', 'until')
  return ends and now < tonumber(ends)
end

-- While gateways that served alone are rejoining, a gateway gets at most what it could use alone: what it has reported,
-- or its share. nil = no bound.
local function share(gateway, backend)
  if not is_settling() then
    return nil
  end
  local cap = call('HGET', key('caps', gateway), backend)
  if cap then
    return tonumber(cap)
  end
  local split = tonumber(call('HGET', prefix .. 'settling', 'split'))
  return math.max(1, math.floor(capacity(backend) / split))
end

-- A gateway rejoins that served alone, or that finds fewer gateways than it knew. Until all `split` gateways have
-- reported what they hold, or for `wait` ms, no gateway gets more slots than it could use alone.
local function settle(split, caps, wait)
  local ends = now + math.max(SETTLE, wait)
  if is_settling() then
    ends = math.max(ends, tonumber(call('HGET', prefix .. 'settling', 'until')))
    split = math.max(split, tonumber(call('HGET', prefix .. 'settling', 'split')))
  else
    for _, gateway in ipairs(call('ZRANGE', prefix .. 'gateways', 0, -1)) do
      call('DEL', key('caps', gateway))
    end
  end
  call('HSET', prefix .. 'settling', 'split', split, 'until', ends)
  call('DEL', prefix .. 'reported')
  for _, cap in ipairs(caps) do
    call('HSET', key('caps', me), cap[1], cap[2])
  end
end

-- This gateway has reported what it holds. When all have, the bounds end.
local function settle_reported()
  if not is_settling() then
    return
  end
  call('SADD', prefix .. 'reported', me)
  if call('SCARD', prefix .. 'reported') >= tonumber(call('HGET', prefix .. 'settling', 'split')) then
    for _, gateway in ipairs(call('SMEMBERS', prefix .. 'reported')) do
      call('DEL', key('caps', gateway))
    end
    call('DEL', prefix .. 'settling', prefix .. 'reported')
  end
end

local function fits(gateway, backend, slots)
  if used(backend) + slots > capacity(backend) then
    return false
  end
  local most = share(gateway, backend)
  return not most or used_by(gateway, backend) + slots <= most
end

local function within(client)
  return tonumber(call('HGET', prefix .. 'within', client) or 0)
end

local function at_limit(name, limit)
  local client = client_of(name)
  local all = client and within(client) or 0
  return limit > 0 and total(key('running', name)) >= limit or all > 0 and total(key('running', client)) >= all
end

local function add_lease(gateway, id, backend, slots, client)
  touch(backend)
  call('HSET', key('leases', gateway), id, cmsgpack.pack({ backend, slots, client }))
  call('HINCRBY', key('inflight', backend), gateway, slots)
  call('HINCRBY', key('running', client), gateway, 1)
  if client_of(client) then
    call('HINCRBY', key('running', client_of(client)), gateway, 1)
  end
end

local function lease_of(gateway, id)
  local raw = call('HGET', key('leases', gateway), id)
  return raw and cmsgpack.unpack(raw)
end

local function remove_lease(gateway, id)
  local lease = lease_of(gateway, id)
  if not lease then
    return nil
  end
  local backend, slots, client = unpack(lease)
  touch(backend)
  call('HDEL', key('leases', gateway), id)
  decrement(key('inflight', backend), gateway, slots)
  decrement(key('running', client), gateway, 1)
  if client_of(client) then
    decrement(key('running', client_of(client)), gateway, 1)
  end
  return backend
end

-- waiters ------------------------------------------------------------------------------------------------------------

local FIELDS = { 'gateway', 'client', 'limit', 'batch', 'returning', 'place', 'turn', 'weight', 'choices' }

local function store(waiter)
  local values = {}
  for index, field in ipairs(FIELDS) do
    values[index] = waiter[field]
  end
  call('HSET', prefix .. 'waiters', waiter.id, cmsgpack.pack(values))
end

local function read_waiter(id, raw)
  local waiter = { id = id }
  for index, value in ipairs(cmsgpack.unpack(raw)) do
    waiter[FIELDS[index]] = value
  end
  return waiter
end

local function waiter_of(id)
  local raw = call('HGET', prefix .. 'waiters', id)
  return raw and read_waiter(id, raw)
end

local function add_waiter(waiter)
  local count = tonumber(call('GET', prefix .. 'count') or 0)
  if waiter.place == 0 then
    waiter.place = count + 1
    waiter.turn = waiter.place
  end
  call('SET', prefix .. 'count', math.max(count, waiter.place, waiter.turn))
  store(waiter)
  for _, backend in ipairs(waiter.choices) do
    call('SADD', key('queue', backend), waiter.id)
    call('SADD', prefix .. 'queues', backend)
  end
  if waiter.weight > 1 or waiter.limit > 0 or client_of(waiter.client) then
    call('SADD', prefix .. 'tied', waiter.id)
  end
end

local function remove_waiter(waiter)
  call('HDEL', prefix .. 'waiters', waiter.id)
  call('SREM', prefix .. 'tied', waiter.id)
  for _, backend in ipairs(waiter.choices) do
    call('SREM', key('queue', backend), waiter.id)
    if call('SCARD', key('queue', backend)) == 0 then
      call('SREM', prefix .. 'queues', backend)
    end
  end
end

local function queue_of(backend)
  local ids, found = call('SMEMBERS', key('queue', backend)), {}
  for first = 1, #ids, 1000 do
    local some = { unpack(ids, first, math.min(first + 999, #ids)) }
    for index, raw in ipairs(call('HMGET', prefix .. 'waiters', unpack(some))) do
      found[#found + 1] = raw and read_waiter(some[index], raw) or nil
    end
  end
  return found
end

-- who is next --------------------------------------------------------------------------------------------------------

local function before(one, other)
  if one.batch ~= other.batch then
    return other.batch
  elseif one.returning ~= other.returning then
    return one.returning
  elseif one.turn ~= other.turn then
    return one.turn < other.turn
  end
  return one.place < other.place
end

-- True for a request of several sequences that does not fit here while another of its backends has more free slots: it
-- waits there, and delays no request here.
local function is_better_off(waiter, backend)
  local taken = used(backend)
  local free = capacity(backend) - taken
  if waiter.weight <= free or taken == 0 then
    return false
  end
  for _, other in ipairs(waiter.choices) do
    if other ~= backend and capacity(other) - used(other) > free then
      return true
    end
  end
  return false
end

local function exceeds_share(waiter, backend)
  local most = share(waiter.gateway, backend)
  return most and used_by(waiter.gateway, backend) + math.min(waiter.weight, capacity(backend)) > most
end

local function next_of(backend, list)
  local best
  for index, waiter in ipairs(list) do
    local out = at_limit(waiter.client, waiter.limit) or exceeds_share(waiter, backend)
    out = out or (waiter.weight > 1 and is_better_off(waiter, backend))
    if not out and (not best or before(waiter, list[best])) then
      best = index
    end
  end
  return best
end

local function grant(waiter, backend, slots, others)
  remove_waiter(waiter)
  add_lease(waiter.gateway, waiter.id, backend, slots, waiter.client)
  local count = call('INCR', prefix .. 'count')
  for _, other in ipairs(others) do
    if other.client == waiter.client then
      other.turn = count
      store(other)
    end
  end
  if waiter.id ~= asking then
    call('PUBLISH', key('to', waiter.gateway), cmsgpack.pack({ 'granted', waiter.id, backend, slots }))
  end
end

local function serve_one(backend)
  if used(backend) >= capacity(backend) then
    return false
  end
  local list, granted = queue_of(backend), false
  while #list > 0 do
    local best = next_of(backend, list)
    if not best then
      break
    end
    local slots = math.min(list[best].weight, capacity(backend))
    if used(backend) + slots > capacity(backend) then
      break -- no later request may overtake it
    end
    grant(table.remove(list, best), backend, slots, list)
    granted = true
  end
  return granted
end

-- Grant the free slots of these backends to the next requests. If some waiters connect queues, all queues are served
-- until no request gets slots any more.
local function serve(backends)
  if call('EXISTS', prefix .. 'queues') == 0 then
    return
  end
  local tied = call('EXISTS', prefix .. 'tied') == 1
  for _, backend in ipairs(backends) do
    serve_one(backend)
  end
  while tied do
    tied = false
    for _, backend in ipairs(call('SMEMBERS', prefix .. 'queues')) do
      tied = serve_one(backend) or tied
    end
  end
end

local function serve_all()
  serve(call('SMEMBERS', prefix .. 'queues'))
end

local function set_capacity(backend, slots)
  local known = capacity(backend)
  if known ~= slots then
    call('HSET', prefix .. 'rooms', backend, slots)
    if slots > known then
      serve({ backend })
    end
  end
end

-- A gateway has left: drop its leases, waiters and reservations.
local function remove_gateway(gateway)
  call('ZREM', prefix .. 'gateways', gateway)
  for _, id in ipairs(call('HKEYS', key('leases', gateway))) do
    remove_lease(gateway, id)
  end
  for _, id in ipairs(call('HKEYS', prefix .. 'waiters')) do
    if begins(id, gateway .. ':') then
      remove_waiter(waiter_of(id))
    end
  end
  call('DEL', key('reserved', gateway), key('caps', gateway))
  call('PUBLISH', prefix .. 'all', cmsgpack.pack({ 'gone', gateway }))
end

-- operations ---------------------------------------------------------------------------------------------------------

local function loads(backends)
  local found = {}
  for index, backend in ipairs(backends) do
    found[index] = { backend, used(backend), used_by(me, backend), slots_of_others(backend) }
  end
  return found
end

-- Grant slots without a queue, where they are free and no request waits before this one.
local function grant_at_once(id, client, limit, weight, backends)
  if at_limit(client, limit) then
    return
  end
  for _, backend in ipairs(backends) do
    local slots = math.min(weight, capacity(backend))
    if call('EXISTS', key('queue', backend)) == 1 then
      if used(backend) < capacity(backend) then
        return
      end
    elseif fits(me, backend, slots) then
      add_lease(me, id, backend, slots, client)
      return
    end
  end
end

-- {'acquire', id, was, client, limit or 0, batch, returning, place, turn, weight, {{backend, capacity}, ...}, may wait,
-- {rpm or 0, tpm or 0, tokens, rpm of the user or 0} or {}, within or 0}: slots of the first backend with free capacity,
-- else a place in the queues of all. `was`: the id under which the request waited until now. `within`: how many requests
-- all users of its client may have under way. Answers: {'granted', second, backend, slots, loads}, {'waits', second,
-- place, turn, loads}, {'full', second}, {'limited', seconds for rpm, for tpm, for rpm of the user}. `second`: when the
-- request was counted against the limits.
function operations.acquire(op)
  local _, id, was, client, limit, batch, returning, place, turn, weight, choices, may_wait, quota, all = unpack(op)
  local touched, second, backends = {}, 0, {}
  if was ~= '' then
    local waiter = waiter_of(was)
    if waiter then
      remove_waiter(waiter)
      place, turn, touched = waiter.place, waiter.turn, waiter.choices
    else
      touched = { remove_lease(me, was) }
    end
  end
  if #quota > 0 then
    local requests, tokens, user = count_request(client, unpack(quota))
    if requests > 0 or tokens > 0 or user > 0 then
      serve(touched)
      return { 'limited', requests, tokens, user }
    end
    second = math.floor(now / 1000)
  end
  for index, choice in ipairs(choices) do
    backends[index] = choice[1]
    set_capacity(choice[1], choice[2])
  end
  if client_of(client) then
    call('HSET', prefix .. 'within', client_of(client), all)
  end
  grant_at_once(id, client, limit, weight, backends)
  local lease, waiter = lease_of(me, id), nil
  if not lease then
    waiter = {
      id = id, gateway = me, client = client, limit = limit, batch = batch, returning = returning, place = place,
      turn = turn, weight = weight, choices = backends,
    }
    add_waiter(waiter)
    asking = id
    serve(backends)
    asking = nil
    lease = lease_of(me, id)
  end
  if not lease and not may_wait then
    remove_waiter(waiter)
    serve(backends)
  end
  serve(touched)
  if lease then
    return { 'granted', second, lease[1], lease[2], loads(backends) }
  elseif not may_wait then
    return { 'full', second }
  end
  return { 'waits', second, waiter.place, waiter.turn, loads(backends) }
end

-- {'drop', id}: a lease has ended, or the request that waited under this id has left.
function operations.drop(op)
  local backend = remove_lease(me, op[2])
  if backend then
    serve({ backend })
    return {}
  end
  local waiter = waiter_of(op[2])
  if waiter then
    remove_waiter(waiter)
    serve(waiter.choices)
  end
  return {}
end

-- {'renew', gateways it knew (0 = it has joined before), leases, waiters, {{backend, capacity}, ...}}: everything that
-- this gateway holds. Leases and waiters that are not listed are dropped; listed ones that are unknown here are added.
-- Leases are {id, backend, slots, client}, waiters {id, client, limit, batch, returning, place, turn, weight, choices}.
-- Answers {gateways present, loads, {{id, backend, slots}, ...}}: the last are waiters that have got slots already. A
-- gateway that served alone adds {{backend, slots that it may use alone}, ...}, and for how many ms: see `settle`.
function operations.renew(op)
  local _, known_gateways, leases, waiters, rooms, caps, wait = unpack(op)
  local known, granted, backends = {}, {}, {}
  for index, place in ipairs(rooms) do
    backends[index] = place[1]
    call('HSET', prefix .. 'rooms', place[1], place[2])
  end
  for _, lease in ipairs(leases) do
    known[lease[1]] = true
    if call('HEXISTS', key('leases', me), lease[1]) == 0 then
      local waiter = waiter_of(lease[1])
      if waiter then
        remove_waiter(waiter)
      end
      add_lease(me, unpack(lease))
    end
  end
  for _, values in ipairs(waiters) do
    local id = values[1]
    known[id] = true
    local lease = lease_of(me, id)
    if lease then
      granted[#granted + 1] = { id, lease[1], lease[2] }
    elseif call('HEXISTS', prefix .. 'waiters', id) == 0 then
      values[1] = me
      add_waiter(read_waiter(id, cmsgpack.pack(values)))
    end
  end
  for _, id in ipairs(call('HKEYS', key('leases', me))) do
    if not known[id] then
      remove_lease(me, id)
    end
  end
  for _, id in ipairs(call('HKEYS', prefix .. 'waiters')) do
    if begins(id, me .. ':') and not known[id] then
      remove_waiter(waiter_of(id))
    end
  end
  local present = call('ZCARD', prefix .. 'gateways')
  if present < known_gateways or (caps and #caps > 0 and present > 1) then
    settle(math.max(present, known_gateways), caps or {}, wait or 0)
  end
  settle_reported()
  serve_all()
  return { present, loads(backends), granted }
end

-- {'leave'}: the gateway stops.
function operations.leave()
  remove_gateway(me)
  serve_all()
  return {}
end
