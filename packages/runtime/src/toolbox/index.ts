export {
  buildToolbox,
  type CallRoute,
  findFunction,
  findMissing,
  findNoEnd,
  findTeller,
  invalidArguments,
  refusal,
  routeCall,
  type Toolbox,
} from './toolbox.js';
export { Toolsets } from './toolsets.js';
