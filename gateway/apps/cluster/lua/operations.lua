-- Operations on the fleet: one of all gateways runs one at a time.
--
-- operator  HASH  gateway: the one that runs an operation;  said: what it says of that. It counts as long as the
--                 gateway is present.

local function operator()
  local gateway = call('HGET', prefix .. 'operator', 'gateway')
  return gateway and is_present(gateway) and gateway or nil
end

-- {'operate', what to say}: {true} = this gateway may run an operation; {false, what the gateway says that runs one}.
function operations.operate(op)
  local holder = operator()
  if holder and holder ~= me then
    return { false, call('HGET', prefix .. 'operator', 'said') }
  end
  call('HSET', prefix .. 'operator', 'gateway', me, 'said', op[2])
  return { true }
end

-- {'operated'}: the operation of this gateway has ended.
function operations.operated(op)
  if call('HGET', prefix .. 'operator', 'gateway') == me then
    call('DEL', prefix .. 'operator')
  end
  return {}
end

-- {'operator'}: {the gateway that runs an operation}; {} = none does.
function operations.operator(op)
  return { operator() }
end
