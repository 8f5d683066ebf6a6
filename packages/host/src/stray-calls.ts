/** Handles uncaught errors of tool calls. The code that loads the runtime sets `fail`; without the runtime there are no such calls. */
export const strayCalls: { fail(error: unknown): boolean } = { fail: () => false };
