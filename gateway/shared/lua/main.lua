-- One batch.

local gone = call('ZRANGEBYSCORE', prefix .. 'gateways', '-inf', now)
for _, gateway in ipairs(gone) do
  bury(gateway)
end
if #gone > 0 then
  serve_all()
end

local batch, answers = cmsgpack.unpack(ARGV[4]), {}
if not call('ZSCORE', prefix .. 'gateways', me) and batch[1][1] ~= 'renew' then
  return cmsgpack.pack({ 'stranger' })
end
if call('ZADD', prefix .. 'gateways', now + tonumber(ARGV[3]), me) == 1 then
  call('PUBLISH', prefix .. 'all', cmsgpack.pack({ 'came', me }))
end
for index, op in ipairs(batch) do
  answers[index] = operations[op[1]](op)
end
return cmsgpack.pack(answers)
