-- rpm and tpm: sums over the last minute, with the arithmetic of gateway/accounting/limits.py.
--
-- rpm:CLIENT, tpm:CLIENT   HASH  second -> amount

local MINUTE = 60

-- The buckets that still count, oldest first, and their sum.
local function window(hash)
  local flat, buckets, sum = call('HGETALL', hash), {}, 0
  local oldest = math.floor(now / 1000) - MINUTE
  for index = 1, #flat, 2 do
    local second, amount = tonumber(flat[index]), tonumber(flat[index + 1])
    if second < oldest then
      call('HDEL', hash, flat[index])
    else
      buckets[#buckets + 1] = { second, amount }
      sum = sum + amount
    end
  end
  return buckets, sum
end

-- Seconds until `amount` more fits; 0 = it does now.
local function seconds_until(hash, limit, amount)
  local buckets, sum = window(hash)
  local over, wait = sum + math.min(amount, limit) - limit, 0
  if over <= 0 then
    return 0
  end
  table.sort(buckets, function(one, other) return one[1] < other[1] end)
  for _, bucket in ipairs(buckets) do
    if over <= 0 then
      break
    end
    over = over - bucket[2]
    wait = bucket[1] + MINUTE + 1 - now / 1000
  end
  return wait
end

local function add_to_window(hash, amount)
  call('HINCRBY', hash, math.floor(now / 1000), amount)
  call('EXPIRE', hash, MINUTE + 2)
end

-- Count a request if all limits allow it. Returns for how many seconds each limit forbids it, 0 = it does not. `rpm`,
-- `tpm`: of the client; `user_rpm`: of the user, who is named as CLIENT/USER. 0 = no limit.
local function count_request(name, rpm, tpm, tokens, user_rpm)
  local client = client_of(name) or name
  local requests_wait = rpm > 0 and seconds_until(key('rpm', client), rpm, 1) or 0
  local tokens_wait = tpm > 0 and seconds_until(key('tpm', client), tpm, tokens) or 0
  local user_wait = user_rpm > 0 and seconds_until(key('rpm', name), user_rpm, 1) or 0
  if requests_wait == 0 and tokens_wait == 0 and user_wait == 0 then
    if rpm > 0 then
      add_to_window(key('rpm', client), 1)
    end
    if tpm > 0 then
      add_to_window(key('tpm', client), tokens)
    end
    if user_rpm > 0 then
      add_to_window(key('rpm', name), 1)
    end
  end
  return requests_wait, tokens_wait, user_wait
end

-- {'used', client, second, tokens}: correct the estimate of a request that was counted in this second by `tokens`
-- (negative = it used fewer).
function operations.used(op)
  local _, client, second, tokens = unpack(op)
  local hash = key('tpm', client)
  if tokens > 0 then
    add_to_window(hash, tokens)
  else
    local held = tonumber(call('HGET', hash, second) or 0)
    if held > 0 then
      call('HSET', hash, second, math.max(0, held + tokens))
    end
  end
  return {}
end
