/** `resources/subscribe` of the revision 2025-11-25, for which the SDK has no built-in handlers. */
import { type McpServer, ResourceNotFoundError } from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { Subscriptions } from './subscriptions.js';

export function registerSubscriptions({ server }: McpServer, scope: McpClientScope): void {
  const subscriptions = new Subscriptions(scope, (uri) => {
    server.sendResourceUpdated({ uri }).catch((error: unknown) => {
      scope.log('debug', 'mcp.change_not_told', { uri, error });
    });
  });
  server.setRequestHandler('resources/subscribe', async ({ params: { uri } }) => {
    if (!(await subscriptions.add(uri))) throw new ResourceNotFoundError(uri);
    return {};
  });
  server.setRequestHandler('resources/unsubscribe', ({ params: { uri } }) => {
    subscriptions.remove(uri);
    return {};
  });
  const { onclose } = server;
  server.onclose = () => {
    subscriptions.close();
    onclose?.();
  };
}
