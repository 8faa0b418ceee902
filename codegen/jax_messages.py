"""jax_messages   the text of a JAX program that sends and stores: one turn on one device."""

MESSAGES = '''
SUMS = "OUT", "DQ", "DKV"  # handed over by who sends them, added where they arrive


def taken(state, tensor, slots):
    """What a message takes of one tensor."""
    if tensor != "OUT":
        return blocks_at(state[tensor], slots)
    parts = normalised(*(blocks_at(x, slots) for x in state["OUT"]))
    return jnp.concatenate(parts, axis=-1)


def blocks_at(store, slots):
    """Some blocks of a store. XLA lays out what it gathers in an order of its own and then copies
    it, so a few are taken one by one."""
    if len(slots) > 4:
        return store.at[slots].get(mode="clip")
    return jnp.concatenate([lax.dynamic_slice_in_dim(store, slot, 1) for slot in slots])


def leaving(state, collectives, sends):
    """The sums that each collective takes with it."""
    sums = [[t for t in tensors if t in SUMS] for tensors, *_ in collectives]
    return [{t: taken(state, t, to[t]) for t in some} for some, to in zip(sums, sends)]


def emptied(state, tensor, slots):
    """What stays behind where sums left: nothing."""

    def none(old, _):
        if tensor == "OUT":
            return tuple(map(jnp.full_like, old, (0, -jnp.inf, 0)))
        return jnp.zeros_like(old)

    return state | {tensor: changed(state[tensor], slots, None, none)}


def stored(state, arrived):
    """Put copies that messages brought into the slots that wait for them, and add sums."""
    ways = {"OUT": merged, "DQ": jnp.add, "DKV": jnp.add}
    for brought in arrived:
        for tensor, (slots, parts) in brought.items():
            way = ways.get(tensor, lambda old, new: new)
            state = state | {tensor: changed(state[tensor], slots, parts, way)}
    return state


def changed(store, slots, parts, way):
    """The store with way(old, part) in some slots, one after the other, so that it changes in
    place; of several arrays if it has several."""
    size = len(jax.tree.leaves(store)[0])

    def one(store, what):
        slot, part = what
        cut = partial(lax.dynamic_index_in_dim, index=slot, keepdims=False)
        old = jax.tree.map(cut, store)
        new = jax.tree.map(partial(jnp.where, slot < size), way(old, part), old)
        put = partial(lax.dynamic_update_index_in_dim, index=slot, axis=0)
        return jax.tree.map(put, store, new), None

    return lax.scan(one, store, (slots, parts), unroll=len(slots) == 1)[0]


def merged(sums, message):
    """Sums with one partial output added, which has its lse as last column."""
    (total, top, weight), (o, lse) = sums, jnp.split(message, (HEAD_DIM,), axis=-1)
    new_top = jnp.maximum(top, lse)
    base = jnp.where(new_top == -jnp.inf, 0, new_top)
    old, new = jnp.exp(top - base), jnp.exp(lse - base)
    return total * old + o * new, new_top, weight * old + new


def normalised(total, top, weight):
    """Output and log-sum-exp of summed tiles: 0 and -inf where nothing was seen."""
    none = weight == 0
    weight = jnp.where(none, 1, weight)
    return total / weight, jnp.where(none, -jnp.inf, top + jnp.log(weight))


def pack(parts):
    """Several tensors as one message, bit by bit; a lone tensor is its own message."""
    if len(parts) == 1:
        return parts[0]
    size = min(part.dtype.itemsize for part in parts)
    return jnp.concatenate([bits(part, size) for part in parts], axis=-1)


def bits(x, size):
    """An array as unsigned numbers of `size` bytes."""
    return lax.bitcast_convert_type(x, f"uint{8 * size}").reshape(*x.shape[:-1], -1)


def unpack(message, like):
    """The tensors of a message."""
    if len(like) == 1:
        return [message]
    size, found = message.dtype.itemsize, []
    for part in like:
        times = part.dtype.itemsize // size
        some, message = jnp.split(message, (part.shape[-1] * times,), axis=-1)
        some = some.reshape(*some.shape[:-1], -1, times) if times > 1 else some
        found.append(lax.bitcast_convert_type(some, part.dtype))
    return found


def exchange(kind, ends, message, axis):
    """One collective: what was sent to this rank, in the order of its senders."""
    if kind == "permute":
        return lax.ppermute(message, axis, ends)
    groups = [list(range(a, a + ends)) for a in range(0, P, ends)] if ends < P else None
    if kind == "all-gather":
        return lax.all_gather(message, axis, axis_index_groups=groups, tiled=True)
    return lax.all_to_all(message, axis, 0, 0, axis_index_groups=groups, tiled=True)
'''

FOLLOW = '''
def follow(setup, state, attend, axis):
    """Run a schedule: every rank the same collectives, each with the slots of its own tables.

    Copies that arrive in a turn are stored when the next one begins, and sums that leave in a turn
    were taken when the one before ended: then nobody reads a store while it changes, so it changes
    in place.
    """
    rank = lax.axis_index(axis)
    for segment in setup.placement.segments:
        tables = segment.sends, segment.receives, segment.attends
        tables = jax.tree.map(lambda table: jnp.asarray(table)[:, rank], tables)
        now = jax.tree.map(lambda table: table[0], tables[0])
        later = jax.tree.map(lambda table: jnp.roll(table, -1, axis=0), tables[0])
        turn = partial(one_turn, setup, segment.collectives, attend, axis)
        arrived = nothing_yet(state, segment.collectives, tables[1])
        begin = state, arrived, leaving(state, segment.collectives, now)
        run = all_turns if segment.turns > 1 else lone_turn
        state, arrived, _ = run(turn, begin, (*tables, later), rank)
        state = stored(state, arrived)
    return state


def all_turns(turn, begin, tables, _):
    """The turns of a segment; what would leave after the last is taken too, but never sent."""
    return lax.scan(turn, begin, tables)[0]


def lone_turn(turn, begin, tables, rank):
    """The turn of a segment that has one: a loop as well, and of a length that XLA does not know.
    It would unroll it, and then copy whole stores that it could change in place."""
    *row, _ = jax.tree.map(lambda table: table[0], tables)

    def once(_, found):
        state, _, sums = found  # nothing has arrived
        (state, arrived, _), _ = turn((state, [], sums), (*row, []))
        return state, arrived, sums

    return lax.fori_loop(0, jnp.where(rank < P, 1, 0), once, begin)


def one_turn(setup, collectives, attend, axis, begin, tables):
    """Store the copies that arrived in the turn before, send, attend while that travels, and add
    the sums that arrived."""
    (state, arrived, sums), (sends, receives, attends, later) = begin, tables
    state, copies, added = stored(state, arrived), [], []
    messages = zip(collectives, sends, sums, receives)
    for (tensors, kind, ends), slots, ready, to in messages:
        parts = [ready[t] if t in ready else taken(state, t, slots[t]) for t in tensors]
        for tensor in ready:
            state = emptied(state, tensor, slots[tensor])
        parts = zip(tensors, unpack(exchange(kind, ends, pack(parts), axis), parts))
        brought = {t: (to[t], part) for t, part in parts}
        copies.append({t: x for t, x in brought.items() if t not in SUMS})
        added.append({t: x for t, x in brought.items() if t in SUMS})
    if attends:
        one = len(attends["q"]) == 1
        state, _ = lax.scan(partial(attend, setup), state, attends, unroll=one)
    state = stored(state, added)
    return (state, copies, leaving(state, collectives, later)), None


def nothing_yet(state, collectives, receives):
    """Copies that nobody sent, for slots where nothing is stored."""
    arrived = []
    for (tensors, *_), slots in zip(collectives, receives):
        arrived.append({})
        for tensor in set(tensors).difference(SUMS):
            to, like = jnp.full_like(slots[tensor][0], NOWHERE), state[tensor]
            part = jnp.zeros((len(to), *like.shape[1:]), like.dtype)
            arrived[-1][tensor] = to, part
    return arrived
'''
