//! The scripts that run inside the server, where nobody comes between a look and a write.

/// One fenced batch. Arguments: the lock's value; how many guards there are, each a key, `=` or
/// `-` for absent, and the value; then commands, each after the number of its words.
pub(super) const BATCH: &str = r"
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'fenced' end
local at = 3
for _ = 1, tonumber(ARGV[2]) do
  local found = redis.call('GET', ARGV[at])
  if ARGV[at + 1] == '-' then
    if found then return 'conflict' end
  elseif found ~= ARGV[at + 2] then
    return 'conflict'
  end
  at = at + 3
end
while at <= #ARGV do
  local words = tonumber(ARGV[at])
  redis.call(unpack(ARGV, at + 1, at + words))
  at = at + words + 1
end
return 'done'
";

/// Takes the lock. Arguments: its value and milliseconds. Gives the value of the holder if there is one.
pub(super) const LOCK: &str = r"
local held = redis.call('GET', KEYS[1])
if held then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ''
";

pub(super) const RENEW: &str = r"
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'fenced' end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 'done'
";

pub(super) const UNLOCK: &str = r"
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 'done'
";
