/**
 * Runs an MCP server as its child, and sees to it that the server, and whatever it has started, ends when this program's stdin ends:
 * when its worker closes it, and when its worker is killed. Plain JavaScript, because it is started from a file as it is, from the
 * sources as from the build.
 *
 * argv: the command and its arguments. stdin goes to the server; its output is the output of this program.
 */
import { spawn } from 'node:child_process';

/** After the end of its stdin a server has so long to end by itself. */
const PATIENCE_MS = 1_000;
/** After a SIGTERM so long. The client kills this program a second after its own. */
const TERM_MS = 500;
const NOT_STARTED = 127;

const [command = '', ...args] = process.argv.slice(2);
// A group of its own: Ctrl-C in a terminal is for the worker, which ends its calls first.
const server = spawn(command, args, { stdio: ['pipe', 'inherit', 'inherit'], detached: true });

function signalGroup(signal) {
  try {
    process.kill(-server.pid, signal);
  } catch {
    // Nothing of it is left.
  }
}

function terminate() {
  signalGroup('SIGTERM');
  setTimeout(() => signalGroup('SIGKILL'), TERM_MS);
}

function end() {
  server.stdin.end();
  setTimeout(terminate, PATIENCE_MS);
}

server.on('error', ({ code }) => {
  process.stderr.write(`${command}: cannot be started (${code})\n`);
  process.exit(NOT_STARTED);
});
server.on('exit', (code) => {
  signalGroup('SIGKILL');
  process.exit(code ?? 1);
});
server.stdin.on('error', () => undefined);
for (const name of ['SIGINT', 'SIGHUP']) process.on(name, () => undefined);
process.on('SIGTERM', terminate);
process.stdin.on('end', end).on('error', end).pipe(server.stdin, { end: false });
