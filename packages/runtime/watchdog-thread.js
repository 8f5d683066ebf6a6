/**
 * Watches the event loop of the process from a thread of its own (docs/turns.md, "A held event loop"). Plain JavaScript, because a
 * thread is started from a file as it is, from the sources as from the build.
 *
 * workerData: { ticks, slot, leaseMs, directUrl, exitCode, sql: BLOCKED_WORKER }. In: { workerId }.
 */
import { writeSync } from 'node:fs';
import { parentPort, workerData } from 'node:worker_threads';

const { ticks, slot, leaseMs, directUrl, exitCode, sql } = workerData;

/** Checks are counted, not time: after a suspension of the process the thread has missed as many checks as the loop has ticks. */
const CHECKS = 10;
const CHECK_MS = leaseMs / 2 / CHECKS;
const PAUSE_MS = leaseMs / 5;
/** Safe after the end of the lease, too: turns that others have taken over meanwhile are left alone. */
const HAND_BACK_MS = 15_000;
/** The turns are handed back by then. */
const EXIT_MS = 2_000;

let workerId;
parentPort.on('message', (message) => {
  workerId = message.workerId;
});

let seen = -1;
let missed = 0;
const timer = setInterval(() => {
  const now = Atomics.load(ticks, 0);
  missed = now === seen ? missed + 1 : 0;
  seen = now;
  if (missed < CHECKS || workerId === undefined) return;
  clearInterval(timer);
  void end();
}, CHECK_MS);

/** The streams of a thread pass through the loop that is held. */
function log(fields) {
  const record = { time: new Date().toISOString(), level: 'error', event: 'worker.blocked', ...fields };
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
    const stop = await within(PAUSE_MS, paused, undefined);
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

/** Native code that a tool has called before it first gave the loop back. */
function readSlot() {
  const length = Atomics.load(ticks, 1);
  return length === 0 ? undefined : new TextDecoder().decode(slot.slice(0, length));
}

async function handBack(call, cause) {
  const { default: pg } = await import('pg');
  const client = new pg.Client({ connectionString: directUrl, application_name: 'boxcar-watchdog' });
  client.on('error', () => undefined);
  await client.connect();
  await client.query('begin');
  const { rows } = await client.query(sql.release, [workerId, call?.turnId ?? null]);
  const released = rows.map(({ id }) => id);
  if (released.includes(call?.turnId))
    await client.query(sql.note, [null, 'turn_runs', call.turnId, null, cause, sql.maxTries, false]);
  await client.query('commit');
  return released.filter((id) => id !== call?.turnId);
}

async function end() {
  const main = await interrupt();
  const text =
    (await main?.evaluate("JSON.stringify(globalThis[Symbol.for('boxcar.currentCall')]?.())")) ?? readSlot();
  const call = text === undefined ? undefined : JSON.parse(text);
  const heldMs = Math.round(leaseMs / 2);
  const who = call === undefined ? 'Code of no tool call' : `The tool ${call.tool}`;
  const cause = `worker_blocked: ${who} held the event loop of its worker for ${heldMs} ms.`;
  const fields = { worker_id: workerId, held_ms: heldMs, ...(main?.at === undefined ? {} : { at: main.at }) };
  const named =
    call === undefined ? {} : { tool: call.tool, tool_call_id: call.toolCallId, turn_id: call.turnId };
  try {
    const released = await within(HAND_BACK_MS, handBack(call, cause), undefined);
    log({
      ...fields,
      ...named,
      ...(released === undefined ? { error: 'the database did not answer' } : { released }),
    });
  } catch (error) {
    log({ ...fields, ...named, error: String(error?.message ?? error) });
  }
  // The interrupted thread can end the process with a code; otherwise only the system can.
  await within(
    EXIT_MS,
    main?.evaluate(`process.reallyExit(${exitCode})`).catch(() => undefined),
    undefined,
  );
  process.kill(process.pid, 'SIGKILL');
}
