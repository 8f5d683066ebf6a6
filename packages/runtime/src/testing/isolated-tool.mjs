// The module of an isolated tool: what it does is its argument.
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
    case 'exit':
      return process.exit(3);
    default:
      for (;;);
  }
};
