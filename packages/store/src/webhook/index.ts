export {
  type ClaimedDelivery,
  claimDeliveries,
  type DeliveryOutcome,
  type RecordedDelivery,
  recordDeliveries,
} from './deliveries.js';
export {
  type DeliveryFilters,
  findDelivery,
  findDeliveryTrouble,
  type ListedDelivery,
  listDeliveries,
  sendAgain,
} from './delivery-lists.js';
