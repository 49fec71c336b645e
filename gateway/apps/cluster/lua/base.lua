-- The state that the gateways of one fleet share, as one script; a call executes a batch of operations of one gateway.
-- KEYS[1]  the prefix of all keys
-- ARGV     the time in ms ('' = this server's own clock), the calling gateway, for how many ms it counts as present
--          from now on, and its operations (msgpack: a list of lists, each begins with its name)
-- returns  a list of answers (msgpack), one per operation; {'stranger'} instead if the gateway is no longer a member:
--          then nothing was done, and the gateway has to join again
--
-- gateways        ZSET  gateway -> until when it counts as present; then its leases and waiters are dropped
-- leases:GATEWAY  HASH  lease -> {backend, slots, client}
-- inflight:BACKEND, running:CLIENT   HASH  gateway -> slots, requests: sums over the leases. A backend is an engine: its
--                 adapters use its slots. Requests of users (CLIENT/USER) count for their client too
-- within          HASH  client with users -> how many requests all of them together may have under way; 0 = no limit
-- rooms           HASH  backend -> its slots, for all gateways together
-- waiters         HASH  waiter -> its fields (FIELDS in slots.lua), packed
-- queue:BACKEND   SET   of waiters;  queues: SET of the backends with waiters
-- tied            SET   of waiters that connect queues: requests of several sequences, and clients with a limit
-- count           counter of arrivals and grants: the source of places and turns

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

local function decrement(hash, field, amount)
  if call('HINCRBY', hash, field, -amount) <= 0 then
    call('HDEL', hash, field)
  end
end

-- The client of a user (CLIENT/USER), whose limits count for all its users together; nil for a client.
local function client_of(user)
  return string.match(user, '^(.-)/')
end

local function begins(text, beginning)
  return string.sub(text, 1, #beginning) == beginning
end
