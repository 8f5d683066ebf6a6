/** The errors of tool calls that nothing caught. What loads the runtime says where they go; without it there are no such calls. */
export const strayCalls: { fail(error: unknown): boolean } = { fail: () => false };
