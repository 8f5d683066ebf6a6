export { type BudgetReport, loadBudgets } from './budget-report.js';
export {
  type AccountRow,
  countChildren,
  findAccount,
  findLeftovers,
  loadAccounts,
  loadSpawnProfiles,
  lockRun,
  raiseAccount,
  reserve,
  type SpawnProfile,
  settleEnded,
  wakeForLeftovers,
} from './budgets.js';
export { chargeLost, dropUnasked, topUp } from './top-ups.js';
