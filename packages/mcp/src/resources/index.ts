/**
 * Resources, which clients read by URI.
 *
 * Every read is made in the name of the client, with its scopes and grants. A resource that it may not read is reported as missing.
 * Rule: docs/reference/mcp.md, "Resources".
 */
import { type McpServer, ResourceTemplate } from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { STATIC, TEMPLATES } from './catalogue.js';
import { mayRead, readResource } from './read-resource.js';
import { registerSubscriptions } from './register-subscriptions.js';

export function registerResources(server: McpServer, scope: McpClientScope): void {
  server.server.registerCapabilities({ resources: { subscribe: true, listChanged: false } });
  registerSubscriptions(server, scope);
  const read = async ({ href }: URL) => ({ contents: [{ uri: href, ...(await readResource(scope, href)) }] });
  for (const { kind, uri, name, ...shown } of STATIC)
    if (mayRead(scope, kind)) server.registerResource(name, uri, shown, read);
  for (const { kind, templates, name, ...shown } of TEMPLATES)
    for (const [index, template] of mayRead(scope, kind) ? templates.entries() : [])
      server.registerResource(
        index === 0 ? name : `${name}_page`,
        new ResourceTemplate(template, { list: undefined }),
        shown,
        read,
      );
}
