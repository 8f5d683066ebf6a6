export { WebhookSender } from './sender.js';
export { readWebhookEnvironment, type WebhookSettings } from './settings.js';
