/** Handles uncaught errors of tool calls. The code that loads the runtime sets `fail`; without the runtime no such calls occur. */
export const strayCalls: { fail(error: unknown): boolean } = { fail: () => false };
