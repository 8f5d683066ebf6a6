/** Exports for tests of model adapters that are not part of the package's public API. */
export { type ModelContractSubject, modelContract } from './model-contract.js';
