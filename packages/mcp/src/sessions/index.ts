import type { McpServer } from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';

export function registerSessionTools(_server: McpServer, _scope: McpClientScope): void {}
