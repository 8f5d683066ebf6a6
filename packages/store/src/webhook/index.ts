export {
  type ClaimedDelivery,
  claimDeliveries,
  type DeliveryOutcome,
  type RecordedDelivery,
  recordDeliveries,
} from './deliveries.js';
export {
  findDelivery,
  findDeliveryTrouble,
  listDeliveries,
  sendAgain,
} from './delivery-lists.js';
