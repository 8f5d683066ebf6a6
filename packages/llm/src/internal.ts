/** What tests of model adapters need beyond the package's surface. */
export { type ModelContractSubject, modelContract } from './model-contract.js';
