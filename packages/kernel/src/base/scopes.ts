/** What a principal may be allowed. Routes, API keys and decisions name these scopes and no others. */
export const SCOPES = [
  'approvals:read',
  'approvals:write',
  'handoffs:read',
  'handoffs:write',
  'tapes:read',
  'tapes:write',
  'turns:read',
  'turns:write',
  'a2a:call',
  'mcp:call',
] as const;

export type Scope = (typeof SCOPES)[number];
