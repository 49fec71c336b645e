-- What the gateways of one fleet share, as one script: it is run for a batch of operations of one gateway.
--
-- KEYS[1]  what all keys begin with
-- ARGV     the time in ms ('' = this server's own clock), the gateway that calls, for how many ms it counts as present
--          from now on, and its operations (msgpack: a list of lists, each begins with its name)
-- returns  a list of answers (msgpack), one per operation; {'stranger'} instead when the gateway is not known any more:
--          then nothing was done, and it has to join anew
--
-- gateways        ZSET  gateway -> until when it counts as present; what it holds ends with that
-- leases:GATEWAY  HASH  lease -> {backend, slots, client}
-- inflight:BACKEND, running:CLIENT   HASH  gateway -> slots, requests: sums over the leases
-- rooms           HASH  backend -> slots that may be used there
-- waiters         HASH  waiter -> who waits for what
-- queue:BACKEND   SET   of waiters;  queues: SET of the backends that have any
-- tied            SET   of waiters that tie backends together: heavy ones, and those of clients with a limit
-- count           how many have come and were served: places and turns

local call = redis.call
local prefix, me = KEYS[1], ARGV[2]

local function clock()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local now = tonumber(ARGV[1]) or clock()
local operations = {}

local function key(kind, name)
  return prefix .. kind .. ':' .. name
end

local function total(hash)
  local sum = 0
  for _, amount in ipairs(call('HVALS', hash)) do
    sum = sum + tonumber(amount)
  end
  return sum
end

local function less(hash, field, amount)
  if call('HINCRBY', hash, field, -amount) <= 0 then
    call('HDEL', hash, field)
  end
end

local function begins(text, beginning)
  return string.sub(text, 1, #beginning) == beginning
end
