/** The permissions that a principal can have. Routes, API keys and decisions use only these scopes. */
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
