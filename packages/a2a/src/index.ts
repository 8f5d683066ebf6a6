export { type A2ARoutesOptions, a2aRoutes } from './a2a-routes.js';
