/**
 * Watches the event loop of the process from a thread of its own (docs/reference/turns.md, "A held event loop"). Plain JavaScript, because a
 * thread is started from a file as it is, from the sources as from the build.
 *
 * workerData: { ticks, slot, exitCode, sql: BLOCKED_WORKER }. In: { workers }, each { workerId, leaseMs, directUrl }: all workers of
 * the process, whenever they change. The shortest lease counts.
 */
import { writeSync } from 'node:fs';
import { parentPort, workerData } from 'node:worker_threads';

const { ticks, slot, exitCode, sql } = workerData;

/** Checks are counted, not time: after a suspension of the process the thread has missed as many checks as the loop has ticks. */
const CHECKS = 10;
const PAUSES_PER_LEASE = 5;
/** Safe after the end of the lease, too: turns that others have taken over meanwhile are left alone. */
const HAND_BACK_MS = 15_000;
/** The turns are handed back by then. */
const EXIT_MS = 2_000;

let workers = [];
let leaseMs = 0;
let timer;
let seen = -1;
let missed = 0;

parentPort.on('message', (message) => {
  workers = message.workers;
  leaseMs = Math.min(...workers.map((worker) => worker.leaseMs));
  missed = 0;
  clearInterval(timer);
  if (workers.length > 0) timer = setInterval(check, leaseMs / 2 / CHECKS);
});

function check() {
  if (Atomics.load(ticks, 2) === 1) {
    clearInterval(timer);
    void leaveAtExit();
    return;
  }
  const now = Atomics.load(ticks, 0);
  missed = now === seen ? missed + 1 : 0;
  seen = now;
  if (missed < CHECKS) return;
  clearInterval(timer);
  void end();
}

/** The streams of a thread pass through the loop that is held. */
function log(event, fields) {
  const record = { time: new Date().toISOString(), level: 'error', event, ...fields };
  writeSync(2, `${JSON.stringify(record)}\n`);
}

const within = (ms, work, otherwise) =>
  Promise.race([work, new Promise((resolve) => setTimeout(resolve, ms, otherwise))]);

/** The debugger of the main thread, which interrupts JavaScript, patterns included, but no native code. */
async function interrupt() {
  try {
    const { Session } = await import('node:inspector');
    const session = new Session();
    session.connectToMainThread();
    const ask = (method, params) =>
      new Promise((resolve, reject) => {
        session.post(method, params, (error, result) => (error ? reject(error) : resolve(result)));
      });
    const paused = new Promise((resolve) => session.once('Debugger.paused', ({ params }) => resolve(params)));
    const urls = new Map();
    session.on('Debugger.scriptParsed', ({ params }) => urls.set(params.scriptId, params.url));
    ask('Debugger.enable').catch(() => undefined);
    ask('Debugger.pause').catch(() => undefined);
    const stop = await within(leaseMs / PAUSES_PER_LEASE, paused, undefined);
    if (stop === undefined) return undefined;
    const [frame] = stop.callFrames;
    return {
      at:
        frame &&
        `${frame.functionName || '(anonymous)'} ${urls.get(frame.location.scriptId)}:${frame.location.lineNumber + 1}`,
      evaluate: async (expression) =>
        (await ask('Runtime.evaluate', { expression, returnByValue: true })).result?.value,
    };
  } catch {
    return undefined;
  }
}

/** Native code that a tool or handler has called before it first gave the loop back. */
function readSlot() {
  const length = Atomics.load(ticks, 1);
  return length === 0 ? undefined : new TextDecoder().decode(slot.slice(0, length));
}

/**
 * Hands the turns of the workers of one database back.
 *
 * @param charge - { turnId, isAll, note }: the turn that is charged, or all, and what is noted: [kind, row, tries].
 */
async function handBack({ directUrl, ids }, { turnId, isAll, note }, cause) {
  const { default: pg } = await import('pg');
  const client = new pg.Client({ connectionString: directUrl, application_name: 'boxcar-watchdog' });
  client.on('error', () => undefined);
  await client.connect();
  await client.query('begin');
  const { rows } = await client.query(sql.release, [ids, turnId, isAll]);
  const released = rows.map(({ id }) => id);
  const [kind, row, tries] = note ?? [];
  if (kind === 'blocked_jobs' || (kind !== undefined && released.includes(row)))
    await client.query(sql.note, [null, kind, row, null, cause, tries, false]);
  await client.query('commit');
  return released.filter((id) => id !== turnId);
}

/** Of one of several databases: only the one of the turn's worker charges it. */
function chargeOf(code, { ids }) {
  if (code?.kind === 'job')
    return { turnId: null, isAll: false, note: ['blocked_jobs', code.noteId, sql.maxJobTries] };
  // Nothing is known, or a turn that no worker of this process holds any more.
  if (code === undefined || !workers.some(({ workerId }) => workerId === code.holderId))
    return { turnId: null, isAll: true };
  if (!ids.includes(code.holderId)) return { turnId: null, isAll: false };
  return { turnId: code.turnId, isAll: false, note: ['turn_runs', code.turnId, sql.maxTries] };
}

function databases() {
  const byUrl = new Map();
  for (const { directUrl, workerId } of workers)
    byUrl.set(directUrl, { directUrl, ids: [...(byUrl.get(directUrl)?.ids ?? []), workerId] });
  return [...byUrl.values()];
}

function describe(code) {
  switch (code?.kind) {
    case 'call':
      return {
        who: `The tool ${code.tool}`,
        fields: { tool: code.tool, tool_call_id: code.toolCallId, turn_id: code.turnId },
      };
    case 'job':
      return {
        who: `The handler of ${code.primitive}, called by the job ${code.jobId},`,
        fields: { primitive: code.primitive, job_id: code.jobId },
      };
    default:
      return { who: 'Code of no call', fields: {} };
  }
}

async function leave(database, code, { event, cause, fields }) {
  const known = { worker_ids: database.ids, ...fields };
  try {
    const released = await within(
      HAND_BACK_MS,
      handBack(database, chargeOf(code, database), cause),
      undefined,
    );
    log(event, {
      ...known,
      ...(released === undefined ? { error: 'the database did not answer' } : { released }),
    });
  } catch (error) {
    log(event, { ...known, error: String(error?.message ?? error) });
  }
}

/** The main thread waits in `process.exit`, which the code of a tool or handler has called. */
async function leaveAtExit() {
  const text = readSlot();
  const code = text === undefined ? undefined : JSON.parse(text);
  const { who, fields } = describe(code);
  const news = { event: 'worker.ended', cause: `worker_crashed: ${who} ended the process.`, fields };
  await Promise.all(databases().map((each) => leave(each, code, news)));
  Atomics.store(ticks, 2, 2);
  Atomics.notify(ticks, 2);
}

async function end() {
  const main = await interrupt();
  const text =
    (await main?.evaluate("JSON.stringify(globalThis[Symbol.for('boxcar.runningCode')]?.())")) ?? readSlot();
  const code = text === undefined ? undefined : JSON.parse(text);
  const heldMs = Math.round(leaseMs / 2);
  const { who, fields } = describe(code);
  const cause = `worker_blocked: ${who} held the event loop of its worker for ${heldMs} ms.`;
  const at = main?.at === undefined ? {} : { at: main.at };
  const news = { event: 'worker.blocked', cause, fields: { held_ms: heldMs, ...at, ...fields } };
  await Promise.all(databases().map((each) => leave(each, code, news)));
  // The interrupted thread can end the process with a code; otherwise only the system can.
  await within(
    EXIT_MS,
    main?.evaluate(`process.reallyExit(${exitCode})`).catch(() => undefined),
    undefined,
  );
  process.kill(process.pid, 'SIGKILL');
}
