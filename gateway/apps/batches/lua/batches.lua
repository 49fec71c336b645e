-- What gateways decide together about batches. KEYS[1]: the prefix of all keys. ARGV: the operation, this gateway, the
-- milliseconds that a lease lasts, then the operation's own arguments, a batch first.
--
-- batch:ID    hash: owner, order, status, record (JSON), total, completed, failed, cancelled, stored (bytes of its
--             lines and rows), next (the first line never taken)
-- lines:ID    hash: number -> where the line is; rows:ID hash: number -> its kind (of KINDS; "1" is of the output file), the row
-- workers:ID  sorted set: gateway -> when its leases expire; held:ID:GATEWAY set: the lines that it runs
-- returned:ID list: lines whose gateway has left them; lead:ID: the gateway that validates or writes the files
-- names:ID    set: digests of custom_ids, while the batch is validated
-- beat, grace: when a gateway last renewed; until when no lease counts as expired, because Redis itself was away

local operation, me, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function key(kind, id)
  return KEYS[1] .. kind .. ':' .. id
end

local function renew()
  local beat = tonumber(redis.call('GET', KEYS[1] .. 'beat') or '0')
  if now - beat > lease / 2 then
    redis.call('SET', KEYS[1] .. 'grace', now + lease)
  end
  redis.call('SET', KEYS[1] .. 'beat', now)
  for i = 4, #ARGV do
    local id = ARGV[i]
    if redis.call('HGET', key('batch', id), 'status') == 'in_progress' then
      redis.call('ZADD', key('workers', id), now + lease, me)
    end
    if redis.call('GET', key('lead', id)) == me then
      redis.call('PEXPIRE', key('lead', id), lease)
    end
  end
  return 1
end

local function give_back(id, gateway)
  local held = key('held', id .. ':' .. gateway)
  for _, number in ipairs(redis.call('SMEMBERS', held)) do
    redis.call('RPUSH', key('returned', id), number)
  end
  redis.call('DEL', held)
  redis.call('ZREM', key('workers', id), gateway)
end

local function take_over(id)
  local beat = tonumber(redis.call('GET', KEYS[1] .. 'beat') or '0')
  local grace = tonumber(redis.call('GET', KEYS[1] .. 'grace') or '0')
  if now < grace or now - beat > lease / 2 then
    return
  end
  for _, gateway in ipairs(redis.call('ZRANGEBYSCORE', key('workers', id), '-inf', now)) do
    if gateway ~= me then
      give_back(id, gateway)
    end
  end
end

-- Arguments: the batch, how many lines, the numbers of those that run here. Answer: whether there is more to look at,
-- then number and line of each that is leased to this gateway now.
local function take(id)
  local status = redis.call('HGET', key('batch', id), 'status')
  if not status then
    return nil
  elseif status ~= 'in_progress' then
    return { 0 }
  end
  local most, running, found = tonumber(ARGV[5]) * 2, {}, { 0 }
  for i = 6, #ARGV do
    running[ARGV[i]] = true
  end
  local held, lines, rows = key('held', id .. ':' .. me), key('lines', id), key('rows', id)
  local function give(number)
    local line = redis.call('HGET', lines, number)
    if line and redis.call('HEXISTS', rows, number) == 0 then
      redis.call('SADD', held, number)
      found[#found + 1] = number
      found[#found + 1] = line
    else
      redis.call('SREM', held, number)
    end
  end
  redis.call('ZADD', key('workers', id), now + lease, me)
  -- leased by an answer that never came here
  for _, number in ipairs(redis.call('SMEMBERS', held)) do
    if not running[number] and #found < most then
      give(number)
    end
  end
  take_over(id)
  while #found < most do
    local number = redis.call('LPOP', key('returned', id))
    if not number then
      break
    elseif running[number] then -- this gateway was silent for too long, and has it still
      redis.call('SADD', held, number)
    else
      give(number)
    end
  end
  local fields = redis.call('HMGET', key('batch', id), 'next', 'total')
  local following, total, looked = tonumber(fields[1]), tonumber(fields[2]), 0
  while #found < most and following < total and looked < 1000 do
    give(string.format('%d', following))
    following, looked = following + 1, looked + 1
  end
  redis.call('HSET', key('batch', id), 'next', following)
  if following < total then
    found[1] = 1
  end
  return found
end

local function record(id)
  local found = redis.call('HMGET', key('batch', id), 'record', 'completed', 'failed', 'cancelled', 'stored')
  if not found[1] then
    return nil
  end
  return found
end

local KINDS = { ['0'] = 'failed', ['1'] = 'completed', ['2'] = 'cancelled' }

local function add(id, number, kind, row)
  if redis.call('HSETNX', key('rows', id), number, kind .. row) == 1 then
    redis.call('HINCRBY', key('batch', id), KINDS[kind], 1)
    redis.call('HINCRBY', key('batch', id), 'stored', #row)
  end
end

-- Arguments: the batch, the line's number, its kind, its row.
local function commit(id)
  redis.call('SREM', key('held', id .. ':' .. me), ARGV[5])
  local status = redis.call('HGET', key('batch', id), 'status')
  if status == 'in_progress' or status == 'cancelling' then
    add(id, ARGV[5], ARGV[6], ARGV[7])
  end
  return record(id)
end

-- Forget all that is known of the lines.
local function forget(id)
  for _, gateway in ipairs(redis.call('ZRANGE', key('workers', id), 0, -1)) do
    redis.call('DEL', key('held', id .. ':' .. gateway))
  end
  for _, kind in ipairs({ 'lines', 'rows', 'names', 'returned', 'workers' }) do
    redis.call('UNLINK', key(kind, id))
  end
end

-- What only one gateway may do, and the status of the batch while it does.
local LED = { index = { validating = true }, write = { finalizing = true } }
for _, kind in ipairs({ 'lead', 'fail', 'move', 'restart' }) do
  LED[kind] = { validating = true, finalizing = true }
end

-- Does this gateway lead? Then it does so for another while.
local function leads(id)
  if redis.call('GET', key('lead', id)) ~= me then
    return false
  end
  redis.call('PEXPIRE', key('lead', id), lease)
  return true
end

-- Is the batch where this operation has its place? A gateway that hears late of what others have done with a batch must
-- not validate it again, nor write its files again.
local function in_place(id)
  return LED[operation][redis.call('HGET', key('batch', id), 'status')]
end

local function may(id)
  return in_place(id) and leads(id)
end

-- Arguments: the batch, the status it shall have, the record with that, its lines, "1" if it has ended, then the
-- statuses that it may have before. Any gateway may cancel what another one validates.
local function move(id)
  local status = redis.call('HGET', key('batch', id), 'status')
  for i = 9, #ARGV do
    if ARGV[i] == status and (ARGV[5] == 'cancelling' or may(id) or not in_place(id)) then
      redis.call('HSET', key('batch', id), 'status', ARGV[5], 'record', ARGV[6], 'total', ARGV[7])
      redis.call('UNLINK', key('names', id))
      if ARGV[8] == '1' then
        redis.call('SREM', KEYS[1] .. 'unfinished', id)
        forget(id)
      end
    end
  end
  return record(id)
end

-- Answer: 1 = this gateway does what only one may do.
local function lead(id)
  if not in_place(id) then
    return 0
  elseif leads(id) then
    return 1
  end
  return redis.call('SET', key('lead', id), me, 'NX', 'PX', lease) and 1 or 0
end

-- Forget all lines and results: validate from the beginning, or end what was never validated.
local function restart(id)
  if not may(id) then
    return 0
  end
  forget(id)
  redis.call('HSET', key('batch', id), 'completed', 0, 'failed', 0, 'cancelled', 0, 'stored', 0, 'next', 0)
  return 1
end

-- Arguments: the batch, then number, digest of the custom_id and line. Answer: the numbers of lines whose custom_id is
-- one of an earlier line; they are not kept. The same lines may come again, when the answer was lost.
local function index(id)
  if not may(id) then
    return 0
  end
  local found = {}
  for i = 5, #ARGV, 3 do
    if redis.call('SADD', key('names', id), ARGV[i + 1]) == 1 then
      redis.call('HSET', key('lines', id), ARGV[i], ARGV[i + 2])
      redis.call('HINCRBY', key('batch', id), 'stored', #ARGV[i + 2] + 256)
    elseif redis.call('HEXISTS', key('lines', id), ARGV[i]) == 0 then
      found[#found + 1] = ARGV[i]
    end
  end
  return found
end

-- Arguments: the batch, then number and row of lines that fail.
local function fail(id)
  if not may(id) then
    return 0
  end
  for i = 5, #ARGV, 2 do
    add(id, ARGV[i], '0', ARGV[i + 1])
  end
  return 1
end

-- Arguments: the batch, a key, its value, the seconds that it is kept.
local function write(id)
  if not may(id) then
    return 0
  end
  redis.call('SET', ARGV[5], ARGV[6], 'EX', ARGV[7])
  return 1
end

local function release(id)
  give_back(id, me)
  if leads(id) then
    redis.call('DEL', key('lead', id))
  end
  return 1
end

local operations = {
  renew = renew, take = take, commit = commit, move = move, record = record, lead = lead, restart = restart,
  index = index, fail = fail, write = write, release = release,
}
return operations[operation](ARGV[4])
