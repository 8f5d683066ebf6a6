/** Tools, resources and prompts that the official conformance suite requires in addition to the product's. */
import { completable, fromJsonSchema, type McpServer, ResourceTemplate } from '@modelcontextprotocol/server';
import { z } from 'zod';

const PNG =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const WAV = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=';
const WATCHED = 'test://watched-resource';

const text = (said: string) => ({ type: 'text' as const, text: said });
const image = { type: 'image' as const, data: PNG, mimeType: 'image/png' };
const embedded = (uri: string, mimeType: string, said: string) => ({
  type: 'resource' as const,
  resource: { uri, mimeType, text: said },
});

function addContentTools(server: McpServer): void {
  const contents = {
    test_simple_text: [text('This is a simple text response for testing.')],
    test_image_content: [image],
    test_audio_content: [{ type: 'audio' as const, data: WAV, mimeType: 'audio/wav' }],
    test_embedded_resource: [
      embedded('test://embedded-resource', 'text/plain', 'This is an embedded resource content.'),
    ],
    test_multiple_content_types: [
      text('Multiple content types test:'),
      image,
      embedded('test://mixed-content-resource', 'application/json', '{"test":"data","value":123}'),
    ],
  };
  for (const [name, content] of Object.entries(contents))
    server.registerTool(name, { description: name }, () => ({ content }));
  server.registerTool('test_error_handling', { description: 'Fails.' }, () => {
    throw new Error('This tool intentionally returns an error for testing');
  });
  server.registerTool(
    'json_schema_2020_12_tool',
    {
      description: 'Tool with JSON Schema 2020-12 features',
      inputSchema: fromJsonSchema({
        $schema: 'https://json-schema.org/draft/2020-12/schema',
        type: 'object',
        $defs: {
          address: {
            type: 'object',
            properties: { street: { type: 'string' }, city: { type: 'string' } },
          },
        },
        properties: { name: { type: 'string' }, address: { $ref: '#/$defs/address' } },
        additionalProperties: false,
      }),
    },
    () => ({ content: [text('ok')] }),
  );
}

function addSpeakingTools(server: McpServer): void {
  server.registerTool('test_tool_with_logging', { description: 'Logs.' }, async (ctx) => {
    for (const said of ['Tool execution started', 'Tool processing data', 'Tool execution completed'])
      await ctx.mcpReq.log('info', said);
    return { content: [text('logged')] };
  });
  server.registerTool('test_tool_with_progress', { description: 'Reports progress.' }, async (ctx) => {
    const { progressToken } = ctx.mcpReq._meta ?? {};
    for (const progress of progressToken === undefined ? [] : [0, 50, 100])
      await ctx.mcpReq.notify({
        method: 'notifications/progress',
        params: { progressToken: progressToken ?? '', progress, total: 100 },
      });
    return { content: [text('done')] };
  });
  server.registerTool('test_reconnection', { description: 'Closes its stream.' }, (ctx) => {
    ctx.http?.closeSSE?.();
    return { content: [text('Reconnection test completed successfully')] };
  });
}

const ENUMS = {
  untitledSingle: { type: 'string', enum: ['option1', 'option2', 'option3'] },
  titledSingle: {
    type: 'string',
    oneOf: [
      { const: 'value1', title: 'First Option' },
      { const: 'value2', title: 'Second Option' },
      { const: 'value3', title: 'Third Option' },
    ],
  },
  legacyEnum: {
    type: 'string',
    enum: ['opt1', 'opt2', 'opt3'],
    enumNames: ['Option One', 'Option Two', 'Option Three'],
  },
  untitledMulti: { type: 'array', items: { type: 'string', enum: ['option1', 'option2', 'option3'] } },
  titledMulti: {
    type: 'array',
    items: {
      anyOf: [
        { const: 'value1', title: 'First Choice' },
        { const: 'value2', title: 'Second Choice' },
        { const: 'value3', title: 'Third Choice' },
      ],
    },
  },
} as const;

const DEFAULTS = {
  name: { type: 'string', default: 'John Doe' },
  age: { type: 'integer', default: 30 },
  score: { type: 'number', default: 95.5 },
  status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
  verified: { type: 'boolean', default: true },
} as const;

/** Tools that ask the client a question in the middle of a call. */
function addAskingTools(server: McpServer): void {
  const said = (
    what: string,
    { action, content }: { readonly action: string; readonly content?: unknown },
  ) => ({
    content: [text(`${what}: action=${action}, content=${JSON.stringify(content ?? {})}`)],
  });
  server.registerTool(
    'test_sampling',
    { description: 'Asks the model of the client.', inputSchema: z.object({ prompt: z.string() }) },
    async ({ prompt }, ctx) => {
      const { content } = await ctx.mcpReq.requestSampling({
        messages: [{ role: 'user', content: text(prompt) }],
        maxTokens: 100,
      });
      const [first] = [content].flat();
      return { content: [text(`LLM response: ${first?.type === 'text' ? first.text : ''}`)] };
    },
  );
  server.registerTool(
    'test_elicitation',
    { description: 'Asks the user.', inputSchema: z.object({ message: z.string() }) },
    async ({ message }, ctx) => {
      const properties = {
        username: { type: 'string', description: "User's response" },
        email: { type: 'string', description: "User's email address" },
      } as const;
      const requestedSchema = { type: 'object', properties, required: ['username', 'email'] } as const;
      return said(
        'User response',
        await ctx.mcpReq.elicitInput({
          message,
          requestedSchema: { ...requestedSchema, required: ['username', 'email'] },
        }),
      );
    },
  );
  for (const [name, properties] of Object.entries({
    test_elicitation_sep1034_defaults: DEFAULTS,
    test_elicitation_sep1330_enums: ENUMS,
  }))
    server.registerTool(name, { description: name }, async (ctx) =>
      said(
        'Elicitation completed',
        await ctx.mcpReq.elicitInput({
          message: 'Please answer.',
          requestedSchema: { type: 'object', properties } as never,
        }),
      ),
    );
}

function addResources(server: McpServer): void {
  const shown = (mimeType: string) => ({ description: 'A fixture.', mimeType });
  server.registerResource('static-text', 'test://static-text', shown('text/plain'), ({ href }) => ({
    contents: [
      { uri: href, mimeType: 'text/plain', text: 'This is the content of the static text resource.' },
    ],
  }));
  server.registerResource('static-binary', 'test://static-binary', shown('image/png'), ({ href }) => ({
    contents: [{ uri: href, mimeType: 'image/png', blob: PNG }],
  }));
  server.registerResource('watched', WATCHED, shown('text/plain'), ({ href }) => ({
    contents: [{ uri: href, mimeType: 'text/plain', text: 'watched' }],
  }));
  server.registerResource(
    'template',
    new ResourceTemplate('test://template/{id}/data', { list: undefined }),
    shown('application/json'),
    ({ href }, { id }) => ({
      contents: [
        {
          uri: href,
          mimeType: 'application/json',
          text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${String(id)}` }),
        },
      ],
    }),
  );
  // The product follows rows, and the resource of the suite has no rows.
  server.server.setRequestHandler('resources/subscribe', () => ({}));
  server.server.setRequestHandler('resources/unsubscribe', () => ({}));
}

function addPrompts(server: McpServer): void {
  const user = <C>(content: C) => ({ role: 'user' as const, content });
  server.registerPrompt('test_simple_prompt', { description: 'Simple.' }, () => ({
    messages: [user(text('This is a simple prompt for testing.'))],
  }));
  server.registerPrompt(
    'test_prompt_with_arguments',
    {
      description: 'With arguments.',
      argsSchema: z.object({
        arg1: completable(z.string(), (value) =>
          ['paris', 'park', 'party'].filter((one) => one.startsWith(value)),
        ),
        arg2: z.string(),
      }),
    },
    ({ arg1, arg2 }) => ({
      messages: [user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
    }),
  );
  server.registerPrompt(
    'test_prompt_with_embedded_resource',
    { description: 'With a resource.', argsSchema: z.object({ resourceUri: z.string() }) },
    ({ resourceUri }) => ({
      messages: [
        user(embedded(resourceUri, 'text/plain', 'Embedded resource content for testing.')),
        user(text('Please process the embedded resource above.')),
      ],
    }),
  );
  server.registerPrompt('test_prompt_with_image', { description: 'With an image.' }, () => ({
    messages: [user(image), user(text('Please analyze the image above.'))],
  }));
}

export function addConformanceFixtures(server: McpServer): McpServer {
  server.server.registerCapabilities({ logging: {} });
  addContentTools(server);
  addSpeakingTools(server);
  addAskingTools(server);
  addResources(server);
  addPrompts(server);
  return server;
}
