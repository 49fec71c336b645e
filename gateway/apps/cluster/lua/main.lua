-- Executes one batch, after gateways whose presence has expired were removed.

local expired = call('ZRANGEBYSCORE', prefix .. 'gateways', '-inf', now)
for _, gateway in ipairs(expired) do
  remove_gateway(gateway)
end
if #expired > 0 then
  serve_all()
end

local batch, answers = cmsgpack.unpack(ARGV[4]), {}
local joins = batch[1][1] == 'renew' and batch[1][2] > 0
if not joins and not call('ZSCORE', prefix .. 'gateways', me) then
  return cmsgpack.pack({ 'stranger' })
end
if call('ZADD', prefix .. 'gateways', now + tonumber(ARGV[3]), me) == 1 then
  call('PUBLISH', prefix .. 'all', cmsgpack.pack({ 'came', me }))
end
for index, op in ipairs(batch) do
  answers[index] = operations[op[1]](op)
end
publish_touched()
return cmsgpack.pack(answers)
