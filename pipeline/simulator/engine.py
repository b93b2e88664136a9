# mypy: disallow-untyped-defs=False
"""The event loop on packed arrays: one decode step on one NPU die, fluid and exact.

Between two events every rate is constant, so an event's time is computed, not stepped to. Units are microseconds and
bytes (1 TB/s = 1e6 bytes/us). The same source runs compiled (numba) and uncompiled (`NUMBA_DISABLE_JIT=1`).

Everything that compiled code depends on (layouts, column numbers, constants) lives in this one file: numba's disk cache
notices a change of the file that holds a function, not of what that file imports.
"""

from collections.abc import Callable
from math import ceil, exp, log
from typing import Any, NamedTuple

import numpy as np
from numba import njit

EPS = 1e-9  # us; events closer than this are one event. Also the relative size below which nothing is missing.
INF = np.inf

# Columns of a parameter row.
(HBM, CORES, CORE_BW, L2_BW, L2, CMO_BW, TASK, ISSUE, GAP, LINK_BW, RANK_LATENCY) = range(11)
(LATE, PREFIX, SELF_EVICTION, SERIAL, SHARING, SHARE, FIRST_SHARE, PEAK) = range(11, 19)
PEAKS = ("bf16", "int8", "fp32", "vector", "link")  # PEAK + k; the last one is no peak: the kernel's timer is the link
(LAUNCH, FUSED_GAP, FUSION) = range(PEAK + 4, PEAK + 7)
COLUMNS = PEAK + 7

# How often each rule decided something in a step.
RULES = (
    "hit",  # a kernel found bytes in L2
    "late_ignored",  # a copy ran beside its target, late bytes do not help (low)
    "late_chance",  # late bytes help with chance 1 - progress (nominal)
    "late_all",  # every late byte helps, read bytes are not copied (high)
    "late_emptied",  # a copy brought the last missing byte of its running target
    "pushed_out",  # bytes of a copy had left L2 before its target started
    "self_evicted",  # ... and the target's own misses pushed out more
    "cold_cores",  # the cores with cold slices limited a kernel
    "core_limited",  # a kernel drew less than a fair share of HBM because of its cores
    "hbm_shared",  # several flows wanted more than HBM gives
    "copy_resident",  # a copy found bytes resident and did not move them
    "issue",  # a stream paid for launching prefetches
    "cross_stream",  # a kernel waited for another stream
    "chain_wait",  # a copy waited for the copy before it
    "serial_hits",  # hits were read before misses
    "reread",  # a kernel found a weight in L2 that another kernel had read
    "cores_busy",  # a kernel waited for cores that another stream's kernel ran on
    "fused",  # a kernel followed another one in the same SuperKernel
    "fused_wait",  # a kernel waited for another stream's kernel of the same SuperKernel
)
(HIT, LATE_IGNORED, LATE_CHANCE, LATE_ALL, LATE_EMPTIED, PUSHED_OUT, SELF_EVICTED, COLD_CORES) = range(8)
(CORE_LIMITED, HBM_SHARED, COPY_RESIDENT, ISSUED, CROSS_STREAM, CHAIN_WAIT) = range(8, 14)
(SERIAL_HITS, REREAD, CORES_BUSY, FUSED, FUSED_WAIT) = range(14, 19)

IDLE, FIXED, HITS, FLOW = range(4)  # phases of a stream
WAITING, QUEUED, MOVING = range(3)  # phases of the copy chain: for a release, for the first byte, for the last one


class Packed(NamedTuple):
    """A workload. n kernels on S streams, R weight reads of W weights, D cross-stream dependencies."""

    stream: np.ndarray  # [n] stream number
    following: np.ndarray  # [n] next kernel of the same stream, -1
    first: np.ndarray  # [S] first kernel of each stream
    op: np.ndarray  # [n] column of the fixed-time row
    peak: np.ndarray  # [n] index into PEAKS
    flops: np.ndarray  # [n]; bytes on the link for communication
    cores: np.ndarray  # [n] AIC cores, 0 all
    units: np.ndarray  # [n] what it occupies while it runs: 1 AIC cores, 2 AIV cores, 3 both, 0 none
    ranks: np.ndarray  # [n] size of the communication group, 1 otherwise
    exact: np.ndarray  # [n] us that the kernel takes on any machine, -1 if modelled
    measured: np.ndarray  # [n] us that the kernel took alone on a cold L2, -1 if not known
    other: np.ndarray  # [n] bytes that are no weights
    grouped: np.ndarray  # [n] 1 if the kernel walks expert by expert (a prefix is then whole experts)
    read_from: np.ndarray  # [n + 1] range of the kernel's weight reads
    read_weight: np.ndarray  # [R]
    read_stored: np.ndarray  # [R] bytes
    read_share: np.ndarray  # [R, 3] low, nominal, high
    wait_from: np.ndarray  # [n + 1] range of the kernel's cross-stream dependencies
    waits: np.ndarray  # [D] kernel numbers
    stored: np.ndarray  # [W] bytes
    part: np.ndarray  # [n, 2] SuperKernel, -1 none; column 0 if what fuses only sometimes does not, 1 if it does
    joined: np.ndarray  # [n, 2] 1 if the kernel follows another one in its SuperKernel
    overlap: np.ndarray  # [n] 1 if kernels of its SuperKernel on other cores (Cube, Vector) may run beside it


class Own(NamedTuple):
    """What each kernel and each read costs under one set of parameters; kernels with an exact time read nothing."""

    us: np.ndarray  # [n] fixed part, no traffic
    core: np.ndarray  # [n] us of compute or link, overlaps traffic
    cores: np.ndarray  # [n] cores it runs on
    l2: np.ndarray  # [n] bytes/us
    other: np.ndarray  # [n] bytes that are no weights
    need: np.ndarray  # [R] bytes read of each weight
    first: np.ndarray  # [R] useful share of a prefix
    gap: np.ndarray  # [n] us before the kernel
    part: np.ndarray  # [n] SuperKernel, -1 none


class Copies(NamedTuple):
    """The copies of one plan or of several plans, in chain order."""

    weight: np.ndarray  # weight number, -1 if no kernel reads it
    after: np.ndarray  # kernel whose end releases the copy, -1 start of the step
    size: np.ndarray  # bytes
    offset: np.ndarray  # bytes


class Outcome(NamedTuple):
    """What a step leaves behind."""

    start: np.ndarray  # [n] us
    end: np.ndarray  # [n] us, -1 never
    hits: np.ndarray  # [n] bytes found in L2
    hbm: np.ndarray  # [n] bytes drawn from HBM
    copy: np.ndarray  # [C, 7] release, first byte, end (us), moved, resident at its start, useful, pushed out (bytes)
    rules: np.ndarray  # [len(RULES)] counts


class Cache(NamedTuple):
    """L2 by a fill clock: a byte filled at clock x is resident until the clock reaches x + usable L2.

    Rows of `read` and `copied` are bytes, clock of the first and of the last; between these two, bytes are taken as
    filled evenly, which a copy is only while its share of HBM stays the same. FIFO equals LRU for weights that are read
    once per step; a weight that is read again is refreshed as a whole.
    """

    read: np.ndarray  # [W, 3] bytes left behind by kernels
    copied: np.ndarray  # [C, 3] bytes brought by copies and not yet read
    clock: np.ndarray  # [1] bytes filled so far


def compiled(function: Callable[..., Any]) -> Any:
    """numba's njit without the GIL, with the disk cache where some directory can be written, else without.

    A division by zero raises in the uncompiled code only: the check makes the compiled code four times slower.
    """
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # no locator: neither the package, NUMBA_CACHE_DIR nor the user's cache can be written
        return njit(nogil=True, error_model="numpy")(function)


@compiled
def level(bands, x, at):
    """Value of the (low, nominal, high) band in row `x` at -1 .. 1."""
    return bands[x, 1] + at * (bands[x, 1] - bands[x, 0] if at < 0.0 else bands[x, 2] - bands[x, 1])


@compiled
def resident(rows, k, floor):
    """Bytes of cache row `k` that were filled after clock `floor`."""
    first, last = rows[k, 1], rows[k, 2]
    if floor <= first:
        return rows[k, 0]
    if floor >= last:
        return 0.0
    return rows[k, 0] * (last - floor) / (last - first)


@compiled
def own_costs(w, p, fixed, own):
    """Fill `own`: what every kernel costs by itself under one set of parameters."""
    for i in range(len(w.op)):
        cores = min(w.cores[i], p[CORES]) if w.cores[i] > 0 else p[CORES]
        own.cores[i] = cores
        own.l2[i] = p[L2_BW] * cores / p[CORES]
        own.core[i] = 0.0
        own.other[i] = 0.0
        # A kernel inside a SuperKernel is not launched: it loses that part of its fixed time, never of its transfer.
        fuses = 1 if p[FUSION] > 0.5 else 0
        own.part[i] = w.part[i, fuses]
        launch = p[LAUNCH] if w.joined[i, fuses] else 0.0
        own.gap[i] = p[FUSED_GAP] if w.joined[i, fuses] else p[GAP]
        if w.exact[i] >= 0.0:
            own.us[i] = max(0.0, w.exact[i] - launch)
            continue
        own.other[i] = w.other[i]
        own.us[i] = max(0.0, fixed[w.op[i]] - launch) + p[RANK_LATENCY] * (w.ranks[i] - 1)
        if w.flops[i] > 0.0:
            own.core[i] = w.flops[i] / (p[LINK_BW] if w.peak[i] == 4 else p[PEAK + w.peak[i]] * cores / p[CORES])
        for x in range(w.read_from[i], w.read_from[i + 1]):
            own.need[x] = w.read_stored[x] * level(w.read_share, x, p[SHARE])
            own.first[x] = level(w.read_share, x, p[FIRST_SHARE]) if own.need[x] > 0.0 else 0.0
        if w.measured[i] >= 0.0:
            fit_measured(i, w, p, own, launch)


@compiled
def fit_measured(i, w, p, own, launch):
    """Make kernel `i` take its measured time: what its bytes and operations do not explain is fixed.

    Where they would take longer than it took, part of them came from L2 or ran faster, and they are scaled down: so a
    prefetch never saves more than the kernel's traffic, and that never more than its time.
    """
    total = own.other[i]
    for x in range(w.read_from[i], w.read_from[i + 1]):
        total += own.need[x]
    explained = max(own.core[i], max(total / min(p[HBM], own.cores[i] * p[CORE_BW]), total / own.l2[i]))
    if explained > w.measured[i]:
        scale = w.measured[i] / explained
        own.core[i] *= scale
        own.other[i] *= scale
        for x in range(w.read_from[i], w.read_from[i + 1]):
            own.need[x] *= scale
    own.us[i] = max(0.0, max(0.0, w.measured[i] - explained) - launch)


@compiled
def max_min(caps, who, weights, count, capacity, rate):
    """Weighted max-min fair rates of `count` flows with demand caps, into `rate[who]`. True if short.

    What is left when small demands are met is shared in proportion to the weights; ties keep their order.
    """
    for x in range(1, count):
        y = x
        while y > 0 and caps[y] * weights[who[y - 1]] < caps[y - 1] * weights[who[y]]:
            caps[y], caps[y - 1] = caps[y - 1], caps[y]
            who[y], who[y - 1] = who[y - 1], who[y]
            y -= 1
    total = 0.0
    for x in range(count):
        total += weights[who[x]]
    short = False
    for x in range(count):
        fair = capacity * weights[who[x]] / total if x < count - 1 else capacity
        total -= weights[who[x]]
        short = short or fair < caps[x]
        rate[who[x]] = min(caps[x], fair)
        capacity -= rate[who[x]]
    return short


@compiled
def look_up(i, w, own, p, cache, links, out, note):
    """What kernel `i` finds in L2 now; with `note`, says in `out` which copies helped.

    Returns:
        Hit bytes, missing bytes, us that the missing bytes take at what the kernel's cores can draw.
    """
    first_copy, next_copy, _ = links
    floor = cache.clock[0] - p[L2]
    hit, missing, alone = 0.0, own.other[i], own.other[i] / (own.cores[i] * p[CORE_BW])
    for x in range(w.read_from[i], w.read_from[i + 1]):
        weight, need = w.read_weight[x], own.need[x]
        reread = min(need, resident(cache.read, weight, floor))
        prefix, speed = 0.0, own.cores[i] * p[CORE_BW]
        if first_copy[weight] >= 0:
            kept = 0.0
            j = first_copy[weight]
            while j >= 0:
                brought = cache.copied[j, 0]
                stays = resident(cache.copied, j, floor) if brought > 0.0 else 0.0
                lost = brought - stays
                if lost > 1.0:
                    # What was pushed out is read first, and these misses push out bytes that are still to be read:
                    # all of them if L2 is a strict LRU (low), as many again (nominal), none (high).
                    if p[SELF_EVICTION] < 1.5:
                        stays = 0.0 if p[SELF_EVICTION] < 0.5 else max(0.0, stays - lost)
                        out.rules[SELF_EVICTED] += note
                    out.rules[PUSHED_OUT] += note
                kept += stays
                if note:
                    out.copy[j, 6] = brought - stays
                j = next_copy[j]
            # The experts in a prefix may be hotter or colder than all; both parts stay between nothing and everything.
            prefix = max(kept * own.first[x], need - (w.read_stored[x] - kept))
            prefix = max(0.0, min(prefix, need - reread))
            if note and kept > 0.0:
                j = first_copy[weight]
                while j >= 0:
                    out.copy[j, 5] += prefix * (cache.copied[j, 0] - out.copy[j, 6]) / kept
                    j = next_copy[j]
        miss = need - reread - prefix
        if miss < 1e-9 * need:
            miss = 0.0
        if p[PREFIX] < 0.5 and prefix > 0.0 and miss > 0.0 and w.grouped[i] == 0:
            # Cores split the weight by address: those with warm slices cannot help the others.
            speed = max(1.0, ceil(miss / need * own.cores[i] - EPS)) * p[CORE_BW]
            out.rules[COLD_CORES] += note
        out.rules[REREAD] += note and reread > 0.0
        hit += need - miss
        missing += miss
        alone += miss / speed
    return hit, missing, alone


@compiled
def late_share(i, weight, w, own):
    """Useful share of what a copy of `weight` brings while kernel `i` reads; -1 if `i` does not read it."""
    for x in range(w.read_from[i], w.read_from[i + 1]):
        if w.read_weight[x] == weight:
            return own.first[x]
    return -1.0


@compiled
def found(j, stored, c, p, cache, links):
    """Bytes of copy `j`'s range that are resident now, and how many of them copy `j` itself had left (warm cache)."""
    first_copy, next_copy, _ = links
    if c.size[j] == 0.0:
        return 0.0, 0.0
    floor = cache.clock[0] - p[L2]
    total = resident(cache.read, c.weight[j], floor) * c.size[j] / stored
    before = 0.0
    k = first_copy[c.weight[j]]
    while k >= 0:
        shared = min(c.offset[j] + c.size[j], c.offset[k] + c.size[k]) - max(c.offset[j], c.offset[k])
        if shared > 0.0 and cache.copied[k, 0] > 0.0:
            stays = resident(cache.copied, k, floor) * shared / c.size[k]
            total += stays
            if k == j:
                before = stays
        k = next_copy[k]
    return min(total, c.size[j]), before


@compiled
def flow_time(left, whole, drain, melt, mode):
    """Time until a kernel's missing bytes are gone.

    With chance 1 - progress (nominal): h missing bytes per unit of progress fall at `melt`, progress grows at
    drain / h, so p(t) = p0 + (drain / melt) ln(h0 / (h0 - melt t)) and the end is closed-form.
    """
    if melt > 0.0 and mode == 1:
        return whole / melt * (1.0 - exp(-left / whole * melt / drain))
    return left / (drain + melt)


@compiled
def step(w, own, c, p, links, out, cache):
    """Run one decode step.

    One long function on purpose: split into functions that share its state it runs forty times slower, because numba
    counts references of every array at every call.

    Args:
        w: the workload.
        own: what `own_costs` says about it.
        c: the plan's copies, in chain order.
        p: one parameter row.
        links: (first copy of each weight, next copy of the same weight, copies released by each kernel).
        out: filled; `end` is -1 for kernels that never ran.
        cache: what L2 holds at the start; updated.

    Returns:
        The time of the step in us, -1 if kernels wait for each other.
    """
    first_copy, next_copy, released = links
    own_us, own_gap, own_part, start, end = own.us, own.gap, own.part, out.start, out.end
    n, streams, chain = len(w.op), len(w.first), len(c.weight)
    late_mode = 0 if p[LATE] < 0.5 else 1 if p[LATE] < 1.5 else 2
    out.end[:] = -1.0
    out.start[:] = -1.0
    out.hits[:] = 0.0
    out.hbm[:] = 0.0
    out.copy[:] = 0.0

    head = w.first.copy()
    last = np.full(streams, -1)
    now = np.full(streams, -1)  # kernel that the stream runs
    phase = np.zeros(streams, np.int64)
    timer = np.zeros(streams)
    left = np.zeros(streams)  # missing bytes still to be drawn
    whole = np.zeros(streams)  # missing bytes per unit of progress
    cap = np.zeros(streams)
    free = np.zeros(streams)
    ready = np.full(streams, INF)
    melt = np.zeros(streams)  # useful bytes/us that the running copy brings to the stream's kernel
    useful_share = np.zeros(streams)
    since = np.full(streams, INF)  # when the stream's next kernel was ready, if it waits for cores
    weights = np.ones(streams + 1)  # what a flow counts where HBM is short
    if p[SHARING] > 0.5:
        weights[streams] = p[CMO_BW] if p[SHARING] < 1.5 else p[CORE_BW]
    rate = np.zeros(streams + 1)
    caps = np.zeros(streams + 1)
    who = np.zeros(streams + 1, np.int64)

    t = 0.0
    j, copying = 0, WAITING  # the copy at the head of the chain
    copy_at, copy_left, copy_clock, copy_own, chain_free = 0.0, 0.0, 0.0, 0.0, 0.0
    counts_resident = True  # False once a kernel has read the whole weight of the running copy
    rounds = 0
    while True:
        rounds += 1
        if rounds > 100 * (n + chain + 10):
            return -1.0
        # 1. Start whatever can start now; stream order breaks ties.
        changed = True
        while changed:
            changed = False
            for s in range(streams):
                ready[s] = INF
                if phase[s] == IDLE and head[s] >= 0:
                    i = head[s]
                    at = 0.0
                    launches = released[last[s]] if last[s] >= 0 else released[n] if s == w.stream[0] else 0
                    if last[s] >= 0:
                        at = free[s] + own_gap[i]
                    at += p[ISSUE] * launches
                    own_at = at
                    for x in range(w.wait_from[i], w.wait_from[i + 1]):
                        done = end[w.waits[x]]
                        at = max(at, done + own_gap[i]) if done >= 0.0 else INF
                    ready[s] = at
                    if at <= t + EPS:
                        # A kernel starts once all its cores are free; they go to the one that has waited longest. What
                        # uses no cores (the link, idle time, measured durations) neither waits nor holds up others.
                        # One SuperKernel runs its kernels one after the other, whatever streams they were on; with
                        # stream-fusion those that use other cores run beside it.
                        waits, fused, aic, aiv = False, False, own.cores[i], own.cores[i]
                        for other in range(streams):
                            k = now[other]
                            if k >= 0:
                                aic += own.cores[k] * (w.units[k] & 1)
                                aiv += own.cores[k] * (w.units[k] >> 1)
                            elif other != s and since[other] < at - EPS:
                                k = head[other]
                                waits = waits or w.units[k] & w.units[i] > 0
                            if k >= 0 and own_part[i] >= 0 and own_part[k] == own_part[i]:
                                fused = fused or w.overlap[i] == 0 or w.units[k] & w.units[i] > 0
                        waits = waits or (w.units[i] & 1 and aic > p[CORES] + EPS)
                        waits = waits or (w.units[i] >> 1 and aiv > p[CORES] + EPS)
                        if waits or fused:
                            out.rules[CORES_BUSY] += waits and since[s] == INF
                            out.rules[FUSED_WAIT] += fused and since[s] == INF
                            since[s], ready[s] = min(since[s], at), INF
                            continue
                        start[i], since[s] = max(t, at), INF
                        now[s], head[s], phase[s] = i, w.following[i], FIXED
                        timer[s] = start[i] + own_us[i]
                        ready[s] = INF
                        changed = True
                        out.rules[ISSUED] += launches > 0 and p[ISSUE] > 0.0
                        out.rules[CROSS_STREAM] += at > own_at
                        out.rules[FUSED] += own_part[i] >= 0 and w.joined[i, 1 if p[FUSION] > 0.5 else 0] > 0
                if phase[s] == FIXED and timer[s] <= t + EPS:
                    i = now[s]
                    phase[s], timer[s] = HITS, t
                    if p[SERIAL] < 0.5:
                        hit, _, _ = look_up(i, w, own, p, cache, links, out, False)
                        timer[s] = t + hit / own.l2[i]
                        out.rules[SERIAL_HITS] += hit > 0.0
                    changed = True
                if phase[s] == HITS and timer[s] <= t + EPS:
                    i = now[s]
                    hit, missing, alone = look_up(i, w, own, p, cache, links, out, True)
                    takes = max(own.core[i], (missing if p[SERIAL] < 0.5 else missing + hit) / own.l2[i])
                    phase[s], timer[s], left[s], whole[s] = FLOW, t + takes, missing, missing
                    out.hits[i] = hit
                    out.rules[HIT] += hit > 0.0
                    if missing > 0.0:  # a demand cap that is fixed here keeps rates constant between events
                        cap[s] = missing / max(alone, takes)
                        if p[SHARING] > 0.5:
                            weights[s] = own.cores[i] * p[CORE_BW]
                        out.rules[CORE_LIMITED] += alone > takes and cap[s] < p[HBM]
                    changed = True
            if copying == WAITING and j < chain and (c.after[j] < 0 or out.end[c.after[j]] >= 0.0):
                release = 0.0 if c.after[j] < 0 else out.end[c.after[j]]
                out.rules[CHAIN_WAIT] += chain_free > release
                copy_at, copying, changed = max(release, chain_free) + p[TASK], QUEUED, True
                out.copy[j, 0], out.copy[j, 1] = release, copy_at
            if copying == QUEUED and copy_at <= t + EPS:
                have, copy_own, weight = 0.0, 0.0, c.weight[j]
                if weight >= 0:
                    have, copy_own = found(j, w.stored[weight], c, p, cache, links)
                # Counted at the start: what the copy brings from now on would be counted twice.
                copy_left, copy_clock, counts_resident = c.size[j] - have, cache.clock[0], True
                out.copy[j, 4] = have
                out.rules[COPY_RESIDENT] += have > 0.0
                if late_mode == 2 and weight >= 0:
                    for s in range(streams):  # what a running target has read by now is resident
                        if phase[s] == FLOW and whole[s] > 0.0 and late_share(now[s], weight, w, own) > 0.0:
                            copy_left *= left[s] / whole[s]
                copying, changed = MOVING, True

        # 2. Rates.
        flows = 0
        for s in range(streams):
            rate[s], melt[s], useful_share[s] = 0.0, 0.0, 0.0
            if phase[s] == FLOW and left[s] > 0.0:
                caps[flows], who[flows] = cap[s], s
                flows += 1
        rate[streams] = 0.0
        if copying == MOVING and copy_left > 0.0:
            caps[flows], who[flows] = p[CMO_BW], streams
            flows += 1
        short = max_min(caps, who, weights, flows, p[HBM], rate)
        out.rules[HBM_SHARED] += short and flows > 1
        partner = -1  # high case: the stream whose kernel the running copy works with
        if rate[streams] > 0.0 and c.weight[j] >= 0:
            for s in range(streams):
                if rate[s] > 0.0:
                    share = late_share(now[s], c.weight[j], w, own)
                    if share > 0.0:
                        out.rules[LATE_IGNORED + late_mode] += 1
                        if late_mode > 0:
                            melt[s], useful_share[s] = rate[streams] * share, share
                        if late_mode == 2 and partner < 0:
                            partner = s

        # 3. The next event.
        event = INF
        for s in range(streams):
            if phase[s] == IDLE:
                event = min(event, ready[s])
            elif phase[s] == FLOW and left[s] > 0.0:
                event = min(event, t + flow_time(left[s], whole[s], rate[s], melt[s], late_mode))
            else:
                event = min(event, timer[s])
        if copying == QUEUED:
            event = min(event, copy_at)
        elif copying == MOVING:
            ends = t
            if partner >= 0:
                # Both take from the same missing bytes u; v of them are the copy's. u' = -(r + m), v' = -m - r v / u,
                # so v = u + (v0 - u0) (u / u0)^(r / (r + m)), which is zero at the u below.
                both = rate[partner] + melt[partner]
                v = min(copy_left * useful_share[partner], left[partner])
                ends = t + left[partner] / both * (1.0 - (1.0 - v / left[partner]) ** (both / melt[partner]))
            elif copy_left > 0.0:
                ends = t + copy_left / rate[streams]
            event = min(event, ends)
        if event == INF:
            break

        # 4. Advance.
        dt = max(0.0, event - t)
        copied = rate[streams] * dt
        if partner >= 0:
            u, v = left[partner], min(copy_left * useful_share[partner], left[partner])
            after = max(0.0, u - (rate[partner] + melt[partner]) * dt)
            v = max(0.0, after + (v - u) * (after / u) ** (rate[partner] / (rate[partner] + melt[partner])))
            copy_left = v / useful_share[partner]
        else:
            copy_left -= copied
        for s in range(streams):
            if rate[s] <= 0.0:
                continue
            before, read = left[s], rate[s] * dt
            if melt[s] > 0.0 and late_mode == 1:
                h = whole[s] - melt[s] * dt
                if h <= whole[s] * EPS:  # the copy brings the last missing byte of a target that still computes
                    left[s] = 0.0
                    out.rules[LATE_EMPTIED] += 1
                else:
                    left[s] = max(0.0, h * (before / whole[s] - rate[s] / melt[s] * log(whole[s] / h)))
                    whole[s] = h
            else:
                left[s] = max(0.0, before - (rate[s] + melt[s]) * dt)
            if left[s] <= (rate[s] + melt[s]) * EPS:  # residues by time, not by bytes: a byte is long for a slow flow
                left[s] = 0.0
            brought = max(0.0, before - left[s] - read)
            if melt[s] > 0.0:
                out.hits[now[s]] += brought
                out.copy[j, 5] += brought
            else:
                read = before - left[s]  # no rounding between what is missing and what is read
            out.hbm[now[s]] += read
            cache.clock[0] += read
        if copying == MOVING:
            if copy_left <= rate[streams] * EPS:
                copy_left = 0.0
            out.copy[j, 3] += copied
            cache.clock[0] += copied
        t = max(t, event)

        # 5. Ends.
        for s in range(streams):
            if phase[s] == FLOW and left[s] == 0.0 and timer[s] <= t + EPS:
                i = now[s]
                out.end[i] = free[s] = t
                last[s], now[s], phase[s] = i, -1, IDLE
                for x in range(w.read_from[i], w.read_from[i + 1]):
                    weight, need = w.read_weight[x], own.need[x]
                    if need <= 0.0:
                        continue
                    cache.read[weight, 0] = need
                    cache.read[weight, 1] = cache.clock[0] - need
                    cache.read[weight, 2] = cache.clock[0]
                    k = first_copy[weight]
                    while k >= 0:
                        cache.copied[k, 0] = 0.0
                        if k == j and copying == MOVING:
                            counts_resident = False  # what still comes is resident already: moved for nothing (nominal)
                            if late_mode == 2:
                                copy_left = 0.0
                        k = next_copy[k]
        if copying == MOVING:
            if counts_resident and c.weight[j] >= 0 and out.copy[j, 3] > 0.0:
                cache.copied[j, 0] = copy_own + out.copy[j, 3]
                cache.copied[j, 1] = copy_clock - copy_own
                cache.copied[j, 2] = cache.clock[0]
            if copy_left == 0.0:
                out.copy[j, 2] = chain_free = t
                copying = WAITING
                j += 1
    for i in range(n):
        if out.end[i] < 0.0:
            return -1.0
    return out.end.max() if n > 0 else 0.0


@compiled
def link_copies(w, c):
    """Chain together the copies of one weight, and count what each kernel's end releases (last entry: the start)."""
    first_copy = np.full(len(w.stored), -1)
    next_copy = np.full(len(c.weight), -1)
    released = np.zeros(len(w.op) + 1, np.int64)
    for j in range(len(c.weight) - 1, -1, -1):
        if c.weight[j] >= 0:
            next_copy[j] = first_copy[c.weight[j]]
            first_copy[c.weight[j]] = j
        released[c.after[j] if c.after[j] >= 0 else len(w.op)] += 1
    return first_copy, next_copy, released


@compiled
def reserve(w, copies):
    """Empty arrays for a workload and as many copies."""
    n, reads = len(w.op), len(w.read_weight)
    own = Own(
        us=np.zeros(n),
        core=np.zeros(n),
        cores=np.zeros(n),
        l2=np.zeros(n),
        other=np.zeros(n),
        need=np.zeros(reads),
        first=np.zeros(reads),
        gap=np.zeros(n),
        part=np.full(n, -1, np.int64),
    )
    cache = Cache(np.zeros((len(w.stored), 3)), np.zeros((copies, 3)), np.zeros(1))
    return own, cache


@compiled
def run_detailed(w, c, p, fixed, steps, out):
    """`steps` decode steps, each on the L2 that the one before left; `out` holds the last one. Returns its time."""
    own, cache = reserve(w, len(c.weight))
    own_costs(w, p, fixed, own)
    links = link_copies(w, c)
    time = 0.0
    for _ in range(steps):
        time = step(w, own, c, p, links, out, cache)
    return time


@compiled
def run_many(w, c, bounds, rows, fixed, steps, plans, draws, times):
    """Times of plans x draws: `times[k, d]` for k in range(*plans), d in range(*draws).

    `bounds` [K + 1] are the ranges of the plans in `c`; `rows` [D, COLUMNS] and `fixed` [D, ops] are the parameters.
    """
    n, longest = len(w.op), 0
    for k in range(plans[0], plans[1]):
        longest = max(longest, bounds[k + 1] - bounds[k])
    own, cache = reserve(w, longest)
    out = Outcome(
        np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros((longest, 7)), np.zeros(len(RULES), np.int64)
    )
    for d in range(draws[0], draws[1]):
        own_costs(w, rows[d], fixed[d], own)
        for k in range(plans[0], plans[1]):
            a, b = bounds[k], bounds[k + 1]
            part = Copies(c.weight[a:b], c.after[a:b], c.size[a:b], c.offset[a:b])
            links = link_copies(w, part)
            cache.read[:], cache.copied[:], cache.clock[:] = 0.0, 0.0, 0.0
            for _ in range(steps):
                times[k, d] = step(w, own, part, rows[d], links, out, cache)
