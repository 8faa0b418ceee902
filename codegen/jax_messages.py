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


def leaving(state, sends):
    """The sums that each collective takes with it."""
    return [{t: taken(state, t, to[t]) for t in to if t in SUMS} for to in sends]


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
    in place. What only passes through is a message from where it begins to where it ends.
    """
    rank, passing = lax.axis_index(axis), {}
    of_rank = partial(jax.tree.map, lambda slots: jnp.asarray(slots)[rank])
    for segment in setup.placement.segments:
        tables = segment.sends, segment.receives, segment.attends
        tables = jax.tree.map(lambda table: jnp.asarray(table)[:, rank], tables)
        now = jax.tree.map(lambda table: table[0], tables[0])
        # What would leave after the last turn is taken too, but never sent.
        later = jax.tree.map(lambda table: jnp.roll(table, -1, axis=0), tables[0])
        turn = partial(one_turn, setup, segment.collectives, attend, axis)
        begins, ends = of_rank(segment.begins), of_rank(segment.ends)
        passing |= {t: taken(state, t, slots) for t, slots in begins.items()}
        for t in [t for t in begins if t in SUMS]:
            state = emptied(state, t, begins[t])
        arrived = nothing_yet(state, tables[1])
        begin = state, arrived, leaving(state, now), passing
        if segment.turns > 1:
            steps, at_once = (*tables, later), turns_at_once(passing)
            found, _ = lax.scan(turn, begin, steps, segment.turns, unroll=at_once)
        else:
            found = lone_turn(turn, begin, tables, rank)
        state, arrived, _, passing = found
        last = {t: (slots, passing.pop(t)[: len(slots)]) for t, slots in ends.items()}
        state = stored(state, [*arrived, last])
    return state


LARGE = 2**20  # bytes


def turns_at_once(passing):
    """The turns in the body of a loop. XLA copies what passes through a turn to where it was in
    the turn before; of two turns the second needs no copy, where that is worth their text."""
    size = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(passing))
    return 2 if size >= LARGE else 1


def lone_turn(turn, begin, tables, rank):
    """The turn of a segment that has one: a loop as well, and of a length that XLA does not know.
    It would unroll it, and then copy whole stores that it could change in place."""
    row = jax.tree.map(lambda table: table[0], tables)

    def once(_, found):
        state, _, sums, passing = found  # nothing has arrived
        (state, arrived, _, passing), _ = turn((state, [], sums, passing), (*row, []))
        return state, arrived, sums, passing

    return lax.fori_loop(0, jnp.where(rank < P, 1, 0), once, begin)


def one_turn(setup, collectives, attend, axis, begin, tables):
    """Store the copies that arrived in the turn before, send, attend while that travels, and add
    the sums that arrived; what only passes through is attended as it came."""
    (state, arrived, sums, passing), (sends, receives, attends, later) = begin, tables
    state, brought = stored(state, arrived), []
    for (tensors, kind, ends), slots, ready in zip(collectives, sends, sums):
        known = ready | passing
        parts = [known[t] if t in known else taken(state, t, slots[t]) for t in tensors]
        for tensor in ready:
            state = emptied(state, tensor, slots[tensor])
        parts = unpack(exchange(kind, ends, pack(parts), axis), parts)
        brought.append(dict(zip(tensors, parts)))
    came = passing | {t: part for some in brought for t, part in some.items()}
    met = state | {t: begun(came[t]) if t in SUMS else x for t, x in passing.items()}
    if attends:
        one = len(attends["q"]) == 1
        met, _ = lax.scan(partial(attend, setup), met, attends, unroll=one)
    state = met | {t: state[t] for t in passing}
    passing = {t: summed(met[t], came[t]) if t in SUMS else came[t] for t in passing}
    arrived = [{t: (to[t], x[t]) for t in to} for to, x in zip(receives, brought)]
    added = [{t: x for t, x in some.items() if t in SUMS} for some in arrived]
    copies = [{t: x for t, x in some.items() if t not in SUMS} for some in arrived]
    state = stored(state, added)
    return (state, copies, leaving(state, later), passing), None


def begun(sums):
    """What a turn adds its share of arriving sums to: nothing yet, as they travel meanwhile. On a
    CPU nothing travels while it computes, so the sums themselves."""
    return lax.platform_dependent(sums, cpu=lambda sums: sums, default=jnp.zeros_like)


def summed(share, sums):
    """The sums that arrived in a turn and its share of them, which was begun as `begun` says."""

    def both(share, _):
        return share

    return lax.platform_dependent(share, sums, cpu=both, default=jnp.add)


def nothing_yet(state, receives):
    """Copies that nobody sent, for slots where nothing is stored."""
    arrived = []
    for to in receives:
        arrived.append({})
        for tensor in [t for t in to if t not in SUMS]:
            none, like = jnp.full_like(to[tensor][0], NOWHERE), state[tensor]
            part = jnp.zeros((len(none), *like.shape[1:]), like.dtype)
            arrived[-1][tensor] = none, part
    return arrived
'''
