// The module of an isolated tool. The argument selects its behavior.
import { pbkdf2Sync } from 'node:crypto';
import { appendFileSync, readFileSync, writeFileSync, writeSync } from 'node:fs';

/** Writes synchronously, and retries while the pipe is full: the reader may be slow. */
const write = (text) => {
  try {
    writeSync(1, text);
  } catch (error) {
    if (error.code !== 'EAGAIN') throw error;
  }
};

export default async ({ what, ...rest }, call) => {
  switch (what) {
    case 'echo':
      return { rest, call: Object.keys(call).sort(), when: new Date(0) };
    case 'throw':
      throw new Error('no luck');
    case 'stray':
      setTimeout(() => Promise.reject(new Error('nobody awaits this')), 1);
      return new Promise(() => undefined);
    case 'memory': {
      const kept = [];
      for (;;) kept.push(new Array(10_000).fill(kept.length));
    }
    case 'array': {
      const kept = [];
      for (;;) kept.push(new Array(2 ** 27).fill(0));
    }
    case 'native':
      writeFileSync(rest.pidFile, String(process.pid));
      return pbkdf2Sync('a', 'b', 2 ** 31 - 1, 64, 'sha512').length;
    case 'large':
      return 'x'.repeat(8_000_000);
    case 'chatty':
      for (let n = 0; n < 200; n++) console.log('.'.repeat(1_000));
      return 'said';
    case 'flood':
      for (;;) write('.'.repeat(1_000));
    case 'meet': {
      appendFileSync(rest.file, '+');
      while (readFileSync(rest.file, 'utf8').replaceAll('-', '').length < rest.count)
        await new Promise((resolve) => setTimeout(resolve, 5));
      appendFileSync(rest.file, '-');
      return 'met';
    }
    case 'exit':
      return process.exit(3);
    default:
      for (;;);
  }
};
