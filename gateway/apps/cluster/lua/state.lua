-- State sync (facts about backends that the gateways publish), and spending.
--
-- board          HASH  field -> {at, until or 0, value}: the latest fact
-- changes        ZSET  field -> revision;  revision: the latest
-- spent:DAY      HASH  "OWNER\tACCOUNT" -> USD; an owner is a gateway over its restarts
-- reserved:GATEWAY  HASH  account -> estimated USD of its requests under way
-- owners         HASH  owner -> the gateway that uses this name now
-- turn           the gateway whose turn it is to start or stop backends for requests

local KEPT = 40 * 86400 -- seconds that a day's spending is kept

local function erase(field)
  call('HDEL', prefix .. 'board', field)
  call('ZREM', prefix .. 'changes', field)
end

-- {'post', field, at, until or 0, value}: publish a fact, unless a later one is known.
function operations.post(op)
  local _, field, at, ends, value = unpack(op)
  local known = call('HGET', prefix .. 'board', field)
  if known and cmsgpack.unpack(known)[1] >= at then
    return {}
  end
  call('HSET', prefix .. 'board', field, cmsgpack.pack({ at, ends, value }))
  call('ZADD', prefix .. 'changes', call('INCR', prefix .. 'revision'), field)
  call('PUBLISH', prefix .. 'all', cmsgpack.pack({ 'news', me }))
  return {}
end

-- {'placed', {{client, conversation, backend}, ...}}: tell the others where conversations are cached.
function operations.placed(op)
  call('PUBLISH', prefix .. 'all', cmsgpack.pack({ 'placed', me, op[2] }))
  return {}
end

-- {'wipe', prefix of fields, at}: drop the facts of these fields that are older than `at`.
function operations.wipe(op)
  local _, beginning, at = unpack(op)
  for _, field in ipairs(call('HKEYS', prefix .. 'board')) do
    if begins(field, beginning) and cmsgpack.unpack(call('HGET', prefix .. 'board', field))[1] < at then
      erase(field)
    end
  end
  return {}
end

-- {'news', revision}: {the latest revision, {{field, at, until, value}, ...}} of the changes since that revision,
-- oldest first.
function operations.news(op)
  local found = {}
  local latest = tonumber(call('GET', prefix .. 'revision') or 0)
  local since = op[2] <= latest and op[2] or 0
  if since == latest then
    return { latest, found }
  end
  for _, field in ipairs(call('ZRANGEBYSCORE', prefix .. 'changes', '(' .. since, '+inf')) do
    local entry = cmsgpack.unpack(call('HGET', prefix .. 'board', field))
    if entry[2] > 0 and entry[2] <= now then
      erase(field)
    else
      found[#found + 1] = { field, unpack(entry) }
    end
  end
  return { latest, found }
end

-- {'spend', owner, {{day, account, USD}, ...}, {{account, USD}, ...}}: the totals and reservations of this gateway that
-- have changed.
function operations.spend(op)
  local _, owner, spent, reserved = unpack(op)
  for _, row in ipairs(spent) do
    call('HSET', key('spent', row[1]), owner .. '\t' .. row[2], row[3])
    call('EXPIRE', key('spent', row[1]), KEPT)
  end
  for _, row in ipairs(reserved) do
    if row[2] > 0 then
      call('HSET', key('reserved', me), row[1], row[2])
    else
      call('HDEL', key('reserved', me), row[1])
    end
  end
  call('PUBLISH', prefix .. 'all', cmsgpack.pack({ 'spend', me, owner, spent, reserved }))
  return {}
end

-- {'read_spending', {day, ...}}: {{{day, owner\taccount, USD}, ...}, {{gateway, account, USD}, ...}}, as text.
function operations.read_spending(op)
  local spent, reserved = {}, {}
  for _, day in ipairs(op[2]) do
    local flat = call('HGETALL', key('spent', day))
    for index = 1, #flat, 2 do
      spent[#spent + 1] = { day, flat[index], flat[index + 1] }
    end
  end
  for _, gateway in ipairs(call('ZRANGE', prefix .. 'gateways', 0, -1)) do
    local flat = call('HGETALL', key('reserved', gateway))
    for index = 1, #flat, 2 do
      reserved[#reserved + 1] = { gateway, flat[index], flat[index + 1] }
    end
  end
  return { spent, reserved }
end

local function is_present(gateway)
  return call('ZSCORE', prefix .. 'gateways', gateway) and true or false
end

-- {'claim', owner, {day, ...}}: {true} = this gateway has the name OWNER from now on; {false} = another gateway that is
-- present has it, or has the same ledger and spends under OWNER/GATEWAY. The ledger, and so the owner's totals, include
-- what gateways that have left spent under such names: their own entries are dropped, here and by the other gateways.
function operations.claim(op)
  local _, owner, days = unpack(op)
  local holder = call('HGET', prefix .. 'owners', owner)
  if holder and holder ~= me and is_present(holder) then
    return { false }
  end
  local old, names = {}, {}
  for _, day in ipairs(days) do
    for _, field in ipairs(call('HKEYS', key('spent', day))) do
      if begins(field, owner .. '/') then
        local name = string.match(field, '^[^\t]*')
        if is_present(string.sub(name, #owner + 2)) then
          return { false }
        end
        old[#old + 1] = { key('spent', day), field }
        names[#names + 1] = name
      end
    end
  end
  call('HSET', prefix .. 'owners', owner, me)
  for _, place in ipairs(old) do
    call('HDEL', unpack(place))
  end
  if #names > 0 then
    call('PUBLISH', prefix .. 'all', cmsgpack.pack({ 'merged', me, names }))
  end
  return { true }
end

-- {'take', ms}: {gateway}: whose turn it is for so long. This gateway gets it, or keeps it, unless another one that is
-- present has it.
function operations.take(op)
  local holder = call('GET', prefix .. 'turn')
  if holder and holder ~= me and is_present(holder) then
    return { holder }
  end
  call('SET', prefix .. 'turn', me, 'PX', op[2])
  return { me }
end

-- {'give'}: this gateway's turn is over.
function operations.give()
  if call('GET', prefix .. 'turn') == me then
    call('DEL', prefix .. 'turn')
  end
  return {}
end
