/**
 * Simulates the gate of a provider under a clock that the test moves: turns that call, workers that are killed, outages, cancels. The rows
 * and the statements are real; calls are numbers. The rules of the gate are checked at every event.
 *
 * G1  There are never more concurrent calls than allowed, and never more calls begun in any minute. No call begins in a pause, and one
 *     call tries after the pause.
 * G2  While turns wait, at least one call is in progress: no gap is longer than the pause of the breaker and the time for which places are
 *     kept.
 * G3  The woken turns are the first of the line. A turn that has not waited calls only when no turn waits. A late turn calls only when no
 *     turn waits that came before it.
 * G4  Each failed call that tries makes the pause longer by one step, and no other call does.
 */
import type { Ring, TurnId, WorkerId } from '@boxcar/kernel';
import { claim } from '../turn/claims.js';
import type { Caller } from '../work/provider-books.js';
import { noteProviderFailure } from '../work/provider-failures.js';
import { setProviderLimits } from '../work/provider-limits.js';
import { enterProvider, leaveProvider, type Woken, wakeProvider } from '../work/providers.js';
import { takeOver } from '../work/sweep.js';
import { type TestProfile, World } from './world.js';

const P = 'p';
const TICK_MS = 500;
const WORKERS = 4;
const MAX_CONCURRENT = 12;
const PER_MINUTE = 200;
const BREAKER_AFTER = 4;
/** How long places are kept, and the maximum delay of a woken turn. */
const KEPT_MS = 10_000;
const LATEST_MS = 14_000;

export interface GateReport {
  readonly turns: number;
  readonly simulatedMs: number;
  readonly calls: number;
  /** How often each event happened. */
  readonly happened: Readonly<Record<string, number>>;
  readonly longestIdleMs: number;
  /** The violations of the rules; empty when all rules held. */
  readonly broken: readonly string[];
}

interface Turn {
  readonly id: TurnId;
  epoch: number;
  holder: WorkerId | undefined;
  /** Its place in the line, as the simulation counts it; undefined when the turn has not waited. */
  position: number | undefined;
  isWaiting: boolean;
  wokenAt: number | undefined;
  attempt: number;
  step: number;
}

interface Call {
  readonly turn: Turn;
  readonly caller: Caller;
  readonly isProbe: boolean;
  readonly beganAt: number;
  readonly endsAt: number;
}

function createRandom(seed: number): (from: number, to: number) => number {
  let state = seed >>> 0;
  return (from, to) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return from + Math.floor((state / 2 ** 32) * (to - from + 1));
  };
}

/** Copies of one dispatched turn, each with a separate agent. */
async function makeTurns(world: World, profile: TestProfile, count: number): Promise<TurnId[]> {
  const { turnId } = await world.submit({ profile });
  const copy = (table: string, row: string, changes: string): string => `
    select (jsonb_populate_record(null::boxcar.${table}, to_jsonb(${row}) || jsonb_build_object(${changes}))).*
    from fresh f, source`;
  await world.rows(
    `
      with source as (
        select t as turn, a as agent, b as tape
        from boxcar.turns t
        join boxcar.agents a on a.id = t.agent_id
        join boxcar.boxes b on b.id = t.output_box_id
        where t.id = $1
      ),
      fresh as materialized (
        select gen_random_uuid() as turn_id, gen_random_uuid() as agent_id, gen_random_uuid() as box_id
        from generate_series(2, $2)
      ),
      tapes as (
        insert into boxcar.boxes
        ${copy('boxes', 'source.tape', "'id', f.box_id, 'name', null")}
      ),
      agents as (
        insert into boxcar.agents
        ${copy('agents', 'source.agent', "'id', f.agent_id, 'name', f.agent_id, 'tape_box_id', f.box_id")}
      )
      insert into boxcar.turns
      ${copy('turns', 'source.turn', "'id', f.turn_id, 'agent_id', f.agent_id, 'output_box_id', f.box_id")}`,
    [turnId, count],
  );
  return (await world.rows<{ id: TurnId }>('select id from boxcar.turns order by id')).map(({ id }) => id);
}

class Simulation {
  readonly #world: World;
  readonly #random: (from: number, to: number) => number;
  readonly #base = Date.now();
  readonly #turns = new Map<TurnId, Turn>();
  readonly #open = new Set<TurnId>();
  readonly #calls = new Map<TurnId, Call>();
  /** Rings and retries in progress, with the time at which they are taken up. */
  #coming: { readonly at: number; readonly turn: Turn }[] = [];
  #workers: WorkerId[] = [];
  readonly #hasSucceeded = new Set<WorkerId>();
  readonly #begun: number[] = [];
  readonly #broken: string[] = [];
  readonly #happened: Record<string, number> = {};
  #now = 0;
  #line = 0;
  #lookAt = Number.POSITIVE_INFINITY;
  #isDown = false;
  #turnOfWeatherAt = 0;
  #openings = 0;
  #openUntil: number | undefined;
  #pauseMs = 0;
  #idleSince: number | undefined;
  #longestIdleMs = 0;

  constructor(world: World, seed: number) {
    this.#world = world;
    this.#random = createRandom(seed);
  }

  async run(count: number): Promise<GateReport> {
    const world = this.#world;
    await setProviderLimits(world.pool, P, {
      maxConcurrent: MAX_CONCURRENT,
      requestsPerMinute: PER_MINUTE,
      breakerAfter: BREAKER_AFTER,
    });
    const profile = await world.profile('caller');
    // Without a worker a turn is queued.
    for (let n = 0; n < WORKERS; n++) this.#workers.push(await this.#newWorker());
    const ids = await makeTurns(world, profile, count);
    const arrivals = ids
      .map((id) => ({ id, at: this.#random(0, Math.ceil(count / 10)) * 1_000 }))
      .toSorted((a, b) => a.at - b.at);
    for (const { id } of arrivals) {
      this.#turns.set(id, {
        id,
        epoch: 1,
        holder: undefined,
        position: undefined,
        isWaiting: false,
        wokenAt: undefined,
        attempt: 1,
        step: 1,
      });
      this.#open.add(id);
    }
    let next = 0;
    // Far longer than all calls in sequence and all pauses together.
    while (this.#open.size > 0 && this.#now < 4 * 3_600_000) {
      this.#weather();
      await this.#endCalls();
      if (this.#random(1, 60) === 1) await this.#kill();
      if (this.#random(1, 25) === 1) await this.#cancel();
      while (next < arrivals.length && (arrivals[next]?.at ?? 0) <= this.#now) {
        const turn = this.#turns.get(arrivals[next]?.id as TurnId);
        if (turn !== undefined) this.#coming.push({ at: this.#now, turn });
        next++;
      }
      await this.#takeUp();
      if (this.#now >= this.#lookAt) await this.#look();
      this.#measure();
      this.#now += TICK_MS;
    }
    if (this.#open.size > 0) this.#broken.push(`${this.#open.size} turns have not ended`);
    return {
      turns: count,
      simulatedMs: this.#now,
      calls: this.#begun.length,
      happened: this.#happened,
      longestIdleMs: this.#longestIdleMs,
      broken: this.#broken,
    };
  }

  get #clock(): Date {
    return new Date(this.#base + this.#now);
  }

  #note(what: string): void {
    this.#happened[what] = (this.#happened[what] ?? 0) + 1;
  }

  async #newWorker(): Promise<WorkerId> {
    const id = await this.#world.worker({ concurrency: 1_000 });
    await this.#world.rows("update boxcar.workers set lease_until = 'infinity' where id = $1", [id]);
    return id;
  }

  /** Makes the provider fail for a while, now and then. */
  #weather(): void {
    if (this.#now < this.#turnOfWeatherAt) return;
    this.#isDown = this.#now > 0 && !this.#isDown && this.#random(1, 2) === 1;
    if (this.#isDown) this.#note('outage');
    this.#turnOfWeatherAt = this.#now + this.#random(5, this.#isDown ? 45 : 30) * 1_000;
  }

  async #endCalls(): Promise<void> {
    const over = [...this.#calls.values()].filter(({ endsAt }) => endsAt <= this.#now);
    if (over.length === 0) return;
    for (const { turn } of over) this.#calls.delete(turn.id);
    for (const call of this.#isDown ? over : []) await this.#fail(call);
    const { rings, lookAfterMs } = await leaveProvider(this.#world.pool, P, {
      turns: over.map(({ caller }) => caller),
      hasProved: !this.#isDown && over.some(({ isProbe }) => isProbe),
      hasAnswered: !this.#isDown,
      now: this.#clock,
    });
    if (this.#isDown) {
      for (const { turn } of over) this.#coming.push({ at: this.#now + this.#random(0, 4) * TICK_MS, turn });
    } else {
      for (const { caller } of over) this.#hasSucceeded.add(caller.holderId);
      if (over.some(({ isProbe }) => isProbe)) this.#openUntil = undefined;
      if (this.#openUntil === undefined) this.#openings = 0;
      await this.#end(
        over.map(({ turn }) => turn),
        'success',
      );
    }
    this.#woken({ rings, lookAfterMs });
  }

  async #fail({ caller, isProbe, beganAt }: Call): Promise<void> {
    const hasSucceeded = this.#hasSucceeded.delete(caller.holderId);
    const until = this.#openUntil;
    const { closedForMs } = await noteProviderFailure(this.#world.pool, P, {
      hasSucceeded,
      caller,
      now: this.#clock,
    });
    this.#note(isProbe ? 'failed try' : 'failed call');
    const openUntil = closedForMs === null ? undefined : this.#now + closedForMs;
    const isLonger = openUntil !== undefined && (until === undefined || Math.abs(openUntil - until) > 5);
    if (!isLonger) return;
    // G4
    this.#note('pause');
    const stepMs = Math.min(10_000 * 2 ** this.#openings, 300_000);
    if (Math.abs((closedForMs ?? 0) - stepMs) > 5)
      this.#broken.push(`G4: a pause of ${closedForMs} ms after ${this.#openings}, at ${this.#now}`);
    if (until !== undefined && (!isProbe || beganAt < until - 5))
      this.#broken.push(`G4: a call that did not try made the pause longer, at ${this.#now}`);
    this.#openings += 1;
    this.#openUntil = openUntil;
    this.#pauseMs = stepMs;
  }

  /** Ends turns in any state. */
  async #end(turns: readonly Turn[], status: 'success' | 'canceled'): Promise<void> {
    const ids = turns.map(({ id }) => id);
    await this.#world.rows(
      `
        with gone as (
          delete from boxcar.waits
          where turn_id = any ($1)
        )
        update boxcar.turns
        set status = $2,
          ended_at = now(),
          holder_id = null,
          deliverable_card_id = id
        where id = any ($1)`,
      [ids, status],
    );
    for (const turn of turns) {
      turn.isWaiting = false;
      this.#open.delete(turn.id);
    }
    this.#coming = this.#coming.filter(({ turn }) => this.#open.has(turn.id));
  }

  async #cancel(): Promise<void> {
    const ids = [...this.#open];
    const turn = this.#turns.get(ids[this.#random(0, ids.length - 1)] as TurnId);
    // A turn that has not arrived yet is not canceled.
    if (turn === undefined || (turn.holder === undefined && !turn.isWaiting)) return;
    const call = this.#calls.get(turn.id);
    this.#note(call === undefined ? 'cancel' : call.isProbe ? 'cancel of a try' : 'cancel of a call');
    await this.#end([turn], 'canceled');
    this.#calls.delete(turn.id);
    if (call === undefined) return;
    this.#woken(
      await leaveProvider(this.#world.pool, P, { turns: [call.caller], hasProved: false, now: this.#clock }),
    );
  }

  /** Kills a worker with its calls; another worker takes its turns. */
  async #kill(): Promise<void> {
    const dead = this.#workers[this.#random(0, WORKERS - 1)];
    if (dead === undefined) return;
    this.#note('kill');
    await this.#world.rows("update boxcar.workers set lease_until = '-infinity' where id = $1", [dead]);
    this.#workers = [...this.#workers.filter((id) => id !== dead), await this.#newWorker()];
    for (const { turn, caller } of this.#calls.values())
      if (caller.holderId === dead) this.#calls.delete(turn.id);
    this.#coming = this.#coming.filter(({ turn }) => turn.holder !== dead);
    const rings = await takeOver(this.#world.pool, { maxLosses: 1_000, limit: 1_000 });
    for (const ring of rings) this.#ring(ring, this.#random(0, 6) * TICK_MS);
  }

  #ring({ turnId, epoch }: Ring, delayMs: number): void {
    const turn = this.#turns.get(turnId);
    if (turn === undefined) return;
    turn.epoch = epoch;
    turn.holder = undefined;
    this.#coming.push({ at: this.#now + delayMs, turn });
  }

  /** G3, and the rings of the woken turns: most are claimed at once, some late. */
  #woken({ rings, lookAfterMs }: Woken): void {
    this.#lookAt =
      lookAfterMs === null ? this.#lookAt : Math.min(this.#lookAt, this.#now + Math.max(lookAfterMs, 20));
    const waiting = [...this.#turns.values()].filter(({ isWaiting }) => isWaiting);
    const first = waiting.toSorted((a, b) => (a.position ?? 0) - (b.position ?? 0)).slice(0, rings.length);
    const wanted = new Set(first.map(({ id }) => id));
    for (const ring of rings) {
      const turn = this.#turns.get(ring.turnId);
      if (turn === undefined) continue;
      if (!wanted.has(turn.id))
        this.#broken.push(`G3: turn ${turn.position} is woken before another, at ${this.#now}`);
      turn.isWaiting = false;
      turn.wokenAt = this.#now;
      const isLate = this.#random(1, 12) === 1;
      if (isLate) this.#note('late');
      this.#ring(ring, isLate ? this.#random(KEPT_MS, LATEST_MS) : this.#random(0, 2) * TICK_MS);
    }
  }

  async #takeUp(): Promise<void> {
    const due = this.#coming.filter(({ at }) => at <= this.#now).map(({ turn }) => turn);
    this.#coming = this.#coming.filter(({ at }) => at > this.#now);
    if (due.length === 0) return;
    const unheld = due.filter(({ holder }) => holder === undefined);
    for (const worker of this.#workers) {
      const own = unheld.filter((_, index) => this.#workers[index % WORKERS] === worker);
      if (own.length === 0) continue;
      const outcomes = await claim(
        this.#world.pool,
        own.map(({ id, epoch }) => ({ turnId: id, epoch })),
        worker,
      );
      for (const [index, outcome] of outcomes.entries()) {
        const turn = own[index];
        if (turn === undefined) continue;
        if (outcome.outcome !== 'claimed') {
          this.#broken.push(`a ring is ${outcome.outcome}, at ${this.#now}`);
          continue;
        }
        turn.holder = worker;
        turn.attempt = outcome.turn.attempt;
        turn.step = outcome.turn.stepCount + 1;
      }
    }
    await this.#enter(due.filter(({ holder }) => holder !== undefined));
  }

  async #enter(turns: readonly Turn[]): Promise<void> {
    const hasWaiting = [...this.#turns.values()].some(({ isWaiting }) => isWaiting);
    const firstWaiting = Math.min(
      ...[...this.#turns.values()].flatMap((turn) => (turn.isWaiting ? [turn.position ?? 0] : [])),
    );
    const callers = turns.map(
      (turn): Caller => ({
        turnId: turn.id,
        epoch: turn.epoch,
        holderId: turn.holder as WorkerId,
        step: turn.step,
        attempt: turn.attempt,
      }),
    );
    const entries = await enterProvider(this.#world.pool, P, { callers, now: this.#clock });
    for (const [index, entry] of entries.entries()) {
      const turn = turns[index];
      const caller = callers[index];
      if (turn === undefined || caller === undefined) continue;
      switch (entry.outcome) {
        case 'admitted': {
          const isInTime = turn.wokenAt !== undefined && this.#now - turn.wokenAt < KEPT_MS;
          if (turn.position === undefined ? hasWaiting : !isInTime && firstWaiting < turn.position)
            this.#broken.push(`G3: a turn calls before one that waits, at ${this.#now}`);
          this.#begin({
            turn,
            caller,
            isProbe: entry.isProbe,
            beganAt: this.#now,
            endsAt: this.#now + this.#random(1, 8) * TICK_MS,
          });
          break;
        }
        case 'waiting':
          this.#note('wait');
          turn.isWaiting = true;
          turn.holder = undefined;
          turn.position ??= this.#line++;
          this.#lookAt = Math.min(this.#lookAt, this.#now + Math.max(entry.lookAfterMs, 20));
          break;
        case 'fenced':
          this.#broken.push(`a turn that is held is fenced, at ${this.#now}`);
          break;
        default:
          entry satisfies never;
      }
    }
  }

  /** G1. */
  #begin(call: Call): void {
    const { turn, isProbe } = call;
    turn.position = undefined;
    turn.wokenAt = undefined;
    this.#calls.set(turn.id, call);
    this.#begun.push(this.#now);
    if (isProbe) this.#note('try');
    if (this.#calls.size > MAX_CONCURRENT)
      this.#broken.push(`G1: ${this.#calls.size} calls at once, at ${this.#now}`);
    const earlier = this.#begun.at(-1 - PER_MINUTE);
    if (earlier !== undefined && this.#now - earlier < 60_000)
      this.#broken.push(`G1: more than ${PER_MINUTE} calls in the minute before ${this.#now}`);
    if (this.#openUntil === undefined) return;
    if (this.#now < this.#openUntil - 5) this.#broken.push(`G1: a call in a pause, at ${this.#now}`);
    const tries = [...this.#calls.values()].filter(
      (one) => one.isProbe && one.beganAt >= (this.#openUntil ?? 0) - 5,
    );
    if (!isProbe || tries.length > 1) this.#broken.push(`G1: ${tries.length} calls try, at ${this.#now}`);
  }

  async #look(): Promise<void> {
    this.#lookAt = Number.POSITIVE_INFINITY;
    this.#woken(await wakeProvider(this.#world.pool, P, { now: this.#clock }));
  }

  /** G2. */
  #measure(): void {
    const isIdle = this.#calls.size === 0 && [...this.#turns.values()].some(({ isWaiting }) => isWaiting);
    if (!isIdle) {
      this.#idleSince = undefined;
      return;
    }
    this.#idleSince ??= this.#now;
    const idleMs = this.#now - this.#idleSince;
    this.#longestIdleMs = Math.max(this.#longestIdleMs, idleMs);
    const pauseMs = this.#openUntil === undefined ? 0 : this.#pauseMs;
    const allowedMs = pauseMs + LATEST_MS + 3_000;
    if (idleMs > allowedMs)
      this.#broken.push(`G2: nobody calls for ${idleMs} ms although turns wait, at ${this.#now}`);
  }
}

/** Lets this many turns call once each, on a separate database. The same seed gives the same sequence of events. */
export async function simulateGate(turns: number, seed: number): Promise<GateReport> {
  await using world = await World.open();
  return await new Simulation(world, seed).run(turns);
}
