-- Orders of a worker, each done as a whole or not at all: see bedload/store/remote.py, which says what they mean.
-- What writes nothing but a head comes first: a store that is full refuses that, and then nothing has happened.
local HEAD = '\0'
local call = redis.call

local function head_of(place)
  local packed = call('HGET', place, HEAD)
  if not packed then return nil end
  local h = {}
  local flags
  local form = '^(%S+) (%S+) (%S+) (%S+) (%S+) (%d+) (%S+)$'
  h.stamp, h.before, flags, h.owner, h.fence, h.undone, h.shape = string.match(packed, form)
  h.whole = string.sub(flags, 1, 1) == 'w'
  h.partial = string.sub(flags, 2, 2) == 'p'
  h.undone = tonumber(h.undone)
  return h
end

local function put_head(place, h)
  local flags = (h.whole and 'w' or '-') .. (h.partial and 'p' or '-')
  local undone = string.format('%d', h.undone)
  call('HSET', place, HEAD, table.concat({h.stamp, h.before, flags, h.owner, h.fence, undone, h.shape}, ' '))
end

local function undone_of(place) return place .. ':u' end

local function forget(place) call('UNLINK', place, undone_of(place)) end

-- Whose process it is: the same worker has others before and after it.
local function worker_of(owner) return string.match(owner, '^[^.]*') end

-- From now on this is a worker's own place for some keys of a key group. One that it had before is nobody's.
local function keep_private(index, private, place, owner)
  local before = call('HGET', index, private)
  if before == place then return end
  call('HSET', index, private, place)
  local h = before and head_of(before)
  if h and worker_of(h.owner) == worker_of(owner) then forget(before) end
end

-- From now on this is the place of a key group. Who had the one before may still need it, to hand keys over, or for
-- single keys that stay. So it is forgotten when there is another one again.
local function register(index, field, private, place, turn)
  local before, older = call('HGET', index, field), field .. '~'
  if before ~= place then
    local h = before and head_of(before)
    if h and (h.stamp > turn or h.fence >= turn) then return false end
    call('HSET', index, field, place)
    local last = call('HGET', index, older)
    if before then call('HSET', index, older, before) end
    h = last and last ~= place and head_of(last)
    if h and call('HGET', index, field .. '@' .. worker_of(h.owner)) ~= last then forget(last) end
  end
  if call('HGET', index, private) == place then call('HDEL', index, private) end
  return true
end

local function put_back(place, h, base, most)
  if call('HLEN', undone_of(place)) ~= h.undone then return 'lost' end
  h.partial = true
  put_head(place, h)
  local cursor, some = '0', {}
  repeat
    local found = call('HSCAN', undone_of(place), cursor, 'COUNT', most)
    cursor, some = found[1], found[2]
  until #some > 0 or cursor == '0'
  for i = 1, #some, 2 do
    if some[i + 1] == '' then call('HDEL', place, some[i]) else call('HSET', place, some[i], some[i + 1]) end
    call('HDEL', undone_of(place), some[i])
  end
  h.undone = h.undone - #some / 2
  if h.undone == 0 then
    if h.stamp > h.fence then h.fence = h.stamp end  -- or an earlier turn would find nothing of a later one
    h.stamp, h.before, h.partial = base, '-', false
  end
  put_head(place, h)
  return h.undone == 0 and 'ok' or 'more'
end

local orders = {}

function orders.seal(place, index, field, private, owner, expected, turn, base, shape, whole, first, last, puts, gone)
  local h = head_of(place)
  first, last = first == '1', last == '1'
  if not h then
    if expected ~= '' or not first then return {'lost'} end
    h = {stamp = base, before = '-', owner = owner, fence = '-', undone = 0, shape = shape}
  elseif h.owner ~= owner or h.fence >= turn then
    return {'fenced'}
  elseif first and (h.stamp ~= expected or h.partial) then
    return {'stale'}
  elseif not first and (h.stamp ~= turn or not h.partial) then
    return {'stale'}
  end
  if first then
    h.stamp, h.before, h.whole, h.undone = turn, base, whole == '1', 0
  end
  h.partial = true
  put_head(place, h)
  if first then
    call('UNLINK', undone_of(place))
    if not h.whole or field == private then
      keep_private(index, private, place, owner)
    elseif not register(index, field, private, place, turn) then
      return {'fenced'}
    end
  end
  local function keep(names)
    local old, kept = call('HMGET', place, unpack(names)), {}
    for i = 1, #names do
      kept[2 * i - 1], kept[2 * i] = names[i], old[i] or ''
    end
    h.undone = h.undone + call('HSET', undone_of(place), unpack(kept))
  end
  if #puts > 0 then
    local names = {}
    for i = 1, #puts, 2 do names[#names + 1] = puts[i] end
    keep(names)
    call('HSET', place, unpack(puts))
  end
  if #gone > 0 then
    keep(gone)
    call('HDEL', place, unpack(gone))
  end
  h.partial = not last
  put_head(place, h)
  return {'ok'}
end

function orders.put(place, index, field, private, owner, expected, stamp, shape, puts, gone)
  local h = head_of(place)
  if not h then
    if expected ~= '' then return {'lost'} end
    h = {stamp = stamp, before = '-', owner = owner, fence = '-', undone = 0, shape = shape, whole = false, partial = false}
    put_head(place, h)
    keep_private(index, private, place, owner)
  elseif h.owner ~= owner then
    return {'fenced'}
  elseif h.stamp ~= expected or h.partial then
    return {'stale'}
  elseif h.whole then
    h.whole = false  -- a part of it comes or goes: before the next seal nobody else knows what is there
    put_head(place, h)
  end
  local new = #puts > 0 and call('HSET', place, unpack(puts)) or 0
  local old = #gone > 0 and call('HDEL', place, unpack(gone)) or 0
  return {'ok', new, old}
end

function orders.undo(place, owner, base, was, latest, most)
  local h = head_of(place)
  if not h then return {'none'} end
  if h.owner ~= owner then return {'fenced'} end
  if (h.stamp == base or h.stamp == was) and not h.partial then return {'ok', h.stamp} end
  if h.stamp > latest then return {'fenced'} end
  if h.before ~= base then return {'stale'} end
  return {put_back(place, h, base, most), base}
end

function orders.find(index, field, owner, base, latest, shape, most)
  local place = call('HGET', index, field)
  local h = place and head_of(place)
  if not h or not h.whole or h.shape ~= shape or h.stamp > latest then return {'lost'} end
  if h.stamp == base and not h.partial then
    h.owner, h.fence = owner, latest
    put_head(place, h)
  elseif h.before == base then
    h.owner, h.fence = owner, latest
    local done = put_back(place, h, base, most)
    if done ~= 'ok' then return {done} end
  else
    return {'lost'}
  end
  return {'ok', place, call('HLEN', place) - 1}
end

function orders.take(place, owner, expected)
  local h = head_of(place)
  if not h then return {'lost'} end
  if h.stamp ~= expected or h.partial then return {'stale'} end
  h.owner = owner
  put_head(place, h)
  return {'ok', call('HLEN', place) - 1}
end

function orders.drop(place, index, private, owner)
  local h = head_of(place)
  if h and h.owner == owner then
    forget(place)
    if call('HGET', index, private) == place then call('HDEL', index, private) end
  end
  return {'ok'}
end

-- Numbers come as texts, and a list as how many items follow. Lists come last.
local LISTS = {seal = 2, put = 2}
local SCALARS = {seal = 12, put = 8, undo = 6, find = 7, take = 3, drop = 4}

local name, said = ARGV[1], {}
local at = 2
for i = 1, SCALARS[name] do
  said[i] = ARGV[at]
  at = at + 1
end
for i = 1, LISTS[name] or 0 do
  local list, many = {}, tonumber(ARGV[at])
  for j = 1, many do list[j] = ARGV[at + j] end
  said[SCALARS[name] + i] = list
  at = at + 1 + many
end
return orders[name](unpack(said, 1, SCALARS[name] + (LISTS[name] or 0)))
