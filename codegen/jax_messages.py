"""jax_messages   the text of a JAX program that sends and stores: one turn on one device."""

MESSAGES = '''
def depart(state, tensor, slots):
    """What a message takes of one tensor; sums are handed over, so nothing stays behind."""
    if tensor == "OUT":
        total, top, weight = (x.at[slots].get(mode="clip") for x in state["OUT"])
        pairs = zip(state["OUT"], (0, -jnp.inf, 0))
        sums = tuple(x.at[slots].set(y, mode="drop") for x, y in pairs)
        message = jnp.concatenate(normalised(total, top, weight), axis=-1)
        return state | {"OUT": sums}, message
    part = state[tensor].at[slots].get(mode="clip")
    if tensor in ("DQ", "DKV"):
        # Zeros that are known only after the read, so that the store changes in place.
        zero = jnp.where(part > jnp.inf, part, 0)
        state = state | {tensor: state[tensor].at[slots].set(zero, mode="drop")}
    return state, part


def arrive(state, tensor, slots, part):
    """Store the copies that a message brought, or add its sums."""
    if tensor == "OUT":
        sums, _ = lax.scan(merge, state["OUT"], (slots, part))
        return state | {"OUT": sums}
    store = state[tensor].at[slots]
    put = store.add if tensor in ("DQ", "DKV") else store.set
    return state | {tensor: put(part, mode="drop")}


def merge(sums, message):
    """Add one partial output, with its lse as last column, to the sums in one slot."""
    slot, (o, lse) = message[0], jnp.split(message[1], (HEAD_DIM,), axis=-1)
    total, top, weight = (x.at[slot].get(mode="clip") for x in sums)
    new_top = jnp.maximum(top, lse)
    base = jnp.where(new_top == -jnp.inf, 0, new_top)
    old, new = jnp.exp(top - base), jnp.exp(lse - base)
    parts = total * old + o * new, new_top, weight * old + new
    return tuple(x.at[slot].set(y, mode="drop") for x, y in zip(sums, parts)), None


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

    What arrives in a turn is stored when the next one begins: then nobody reads the store any
    more, so it changes in place.
    """
    rank = lax.axis_index(axis)
    for segment in setup.placement.segments:
        tables = segment.sends, segment.receives, segment.attends
        tables = jax.tree.map(lambda table: jnp.asarray(table)[:, rank], tables)
        turn = partial(one_turn, setup, segment.collectives, attend, axis)
        begin = state, nothing_yet(state, segment.collectives, tables[1])
        (state, arrived), _ = lax.scan(turn, begin, tables, unroll=segment.turns == 1)
        state = stored(state, segment.collectives, arrived)
    return state


def one_turn(setup, collectives, attend, axis, begin, tables):
    """Store what arrived in the turn before, send, and attend while that travels."""
    sends, receives, attends = tables
    state, arrivals = stored(begin[0], collectives, begin[1]), []
    for (tensors, kind, ends), slots in zip(collectives, sends):
        parts = []
        for tensor in tensors:
            state, part = depart(state, tensor, slots[tensor])
            parts.append(part)
        arrivals.append(unpack(exchange(kind, ends, pack(parts), axis), parts))
    if attends:
        one = len(attends["q"]) == 1
        state, _ = lax.scan(partial(attend, setup), state, attends, unroll=one)
    return (state, list(zip(receives, arrivals))), None


def stored(state, collectives, arrived):
    """Store what each collective brought, in the slots that wait for it."""
    for (tensors, *_), (slots, parts) in zip(collectives, arrived):
        for tensor, part in zip(tensors, parts):
            state = arrive(state, tensor, slots[tensor], part)
    return state


def nothing_yet(state, collectives, receives):
    """Messages that nobody sent, with slots where nothing is stored."""
    arrived = []
    for (tensors, *_), slots in zip(collectives, receives):
        slots = {tensor: jnp.full_like(slots[tensor][0], NOWHERE) for tensor in tensors}
        likes = {t: state[t][0] if t == "OUT" else state[t] for t in tensors}
        more = {t: int(t == "OUT") for t in tensors}  # its lse is the last column
        parts = [
            jnp.zeros((*slots[t].shape, *x.shape[1:-1], x.shape[-1] + more[t]), x.dtype)
            for t, x in likes.items()
        ]
        arrived.append((slots, parts))
    return arrived
'''
