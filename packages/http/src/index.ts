export { approvalRoutes } from './approvals/approval-routes.js';
export type { EventSource, ServerEvent } from './event-stream.js';
export { createHttpFrame, type HttpAddress, type HttpFrame, type HttpFrameOptions } from './frame.js';
export { handoffRoutes } from './handoffs/handoff-routes.js';
export { type LocalKey, openLocalKey } from './local-key.js';
export { announceServer } from './local-state.js';
export { DEFAULT_PORT, isLoopbackHost } from './loopback.js';
export { readPublicUrl } from './public-url.js';
export {
  type Call,
  type CallPrincipal,
  type Method,
  type PublicCall,
  type Route,
  type RouteBase,
  readQuery,
  type TokenDoor,
} from './route.js';
