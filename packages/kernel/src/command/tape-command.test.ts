import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import { COMMAND_HELP, commandFault, readTapeCommand, takeCommands } from './tape-command.js';

const failure = (text: string): KernelError => {
  try {
    readTapeCommand(text);
  } catch (error) {
    if (error instanceof KernelError) return error;
  }
  throw new Error(`${text} is read`);
};

describe('a command for a tape', () => {
  test.each([
    [
      ',handoff name=phase-1 summary="Setup done"',
      { kind: 'handoff', input: { name: 'phase-1', summary: 'Setup done' } },
    ],
    [
      ',tape.handoff name=project/start state={goal: "Build API"}',
      { kind: 'handoff', input: { name: 'project/start', state: { goal: 'Build API' } } },
    ],
    [
      `,handoff name=p state='{"goal":"Build API"}'`,
      { kind: 'handoff', input: { name: 'p', state: { goal: 'Build API' } } },
    ],
    [',handoff phase-1', { kind: 'handoff', input: { name: 'phase-1' } }],
    [',handoff', { kind: 'handoff', input: {} }],
    [',anchors', { kind: 'anchors', input: {} }],
    [',tape.anchors limit=5', { kind: 'anchors', input: { limit: 5 } }],
    [',tape.search null check kinds=x', undefined],
    [
      ',tape.search null check kinds=message,error limit=3 start=2026-01-01',
      {
        kind: 'search',
        input: { query: 'null check', kinds: ['message', 'error'], limit: 3, start: '2026-01-01' },
      },
    ],
    [',tape.info', { kind: 'info', input: {} }],
    [',tape', { kind: 'info', input: {} }],
    [',tape.reset archive=true', { kind: 'reset', input: { archive: true } }],
    [',tape.reset --archive', { kind: 'reset', input: { archive: true } }],
    [',tape.reset', { kind: 'reset', input: {} }],
    [' ,help', { kind: 'help', input: {} }],
    [',quit', { kind: 'quit', input: {} }],
  ])('%s is read with its name and arguments', (text, command) => {
    if (command === undefined) expect(failure(text).code).toBe('bad_request');
    else expect(readTapeCommand(text)).toEqual(command);
  });

  test.each([
    [',nothing', "no command ',nothing'"],
    [',', 'a name is missing'],
    [',ls -la', "no command ',ls'"],
    [',handoff summary="open', 'a quote is not closed'],
    [',handoff a b', "put 'a b' in quotes"],
    [',handoff x name=y', 'name: is given twice'],
    [',handoff name=a b', 'positional argument'],
    [',handoff name=p state={goal', 'a brace is not closed'],
    [',handoff name=p state=[1]', 'state:'],
    [',handoff name=p who=me', 'handoff: '],
    [',handoff name=p tape=other', 'handoff: '],
    [',anchors limit=-1', 'limit:'],
    [',anchors limit=many', 'limit:'],
    [',anchors all', "takes no 'all'"],
    [',tape.search', 'query:'],
    [',tape.reset archive=perhaps', 'archive:'],
    [',help me', "takes no 'me'"],
  ])('%s is refused with the list of commands', (text, message) => {
    const error = failure(text);
    expect(error.code).toBe('bad_request');
    expect(error.message).toContain(message);
    expect(error.message).toContain('Commands: ,handoff, ,anchors, ,tape.search');
    expect(error.details.commands).toContain(',tape.reset');
  });

  test('that is known but cannot be read is refused with its correct form', () => {
    expect(failure(',tape.search limit=3').message).toMatch(/^query: .*Usage: ,tape\.search <words> /);
    expect(failure(',handoff summary="open').message).toContain('Usage: ,handoff name=<name> ');
    expect(failure(',ls').message).not.toContain('Usage');
  });

  test('is in the list that help shows', () => {
    expect(COMMAND_HELP.split('\n')).toHaveLength(7);
    expect(COMMAND_HELP).toContain(',tape.reset [archive=true]');
  });
});

describe('the commands in an agent’s answer', () => {
  test('become calls of their tools, and the rest of the answer is shown', () => {
    const text = 'Found it.\n,handoff name=done summary="Line 45"\n,anchors limit=2\nNext, the fix.';
    expect(takeCommands(text)).toEqual({
      visible: 'Found it.\nNext, the fix.',
      calls: [
        { name: 'tape.handoff', arguments: '{"name":"done","summary":"Line 45"}' },
        { name: 'tape.anchors', arguments: '{"limit":2}' },
      ],
    });
  });

  test('are not found in fences and in quoted text', () => {
    const text = '```\n,handoff name=a\n```\n> ,anchors\n<doc>\n,tape.info\n</doc>';
    expect(takeCommands(text)).toEqual({ visible: text, calls: [] });
  });

  test('that only people may use, or that do not exist, keep their name, so that the call is refused', () => {
    expect(takeCommands(',tape.reset archive=true').calls).toEqual([
      { name: 'tape.reset', arguments: '{"archive":true}' },
    ]);
    expect(takeCommands(',rm path=/').calls).toEqual([{ name: 'rm', arguments: '{"path":"/"}' }]);
  });

  test('that cannot be read become calls that give the reason', () => {
    const [call] = takeCommands(',handoff name=a state={').calls;
    expect(call).toEqual({ name: 'tape.handoff', arguments: ',handoff name=a state={' });
    expect(commandFault(call?.arguments ?? '')).toContain('a brace is not closed');
    expect(commandFault('no command')).toBeUndefined();
    expect(commandFault({})).toBeUndefined();
  });

  test('are ignored when there are more than an answer may have', () => {
    const text = ',anchors\n'.repeat(33);
    expect(takeCommands(text)).toEqual({ visible: text, calls: [] });
  });
});

test('names that every object inherits are ordinary names of arguments', () => {
  const state = '{__proto__: 1, constructor: 2}';
  expect(JSON.stringify(readTapeCommand(`,handoff name=x state=${state}`).input)).toContain(
    '"state":{"__proto__":1,"constructor":2}',
  );
  expect(() => readTapeCommand(',handoff constructor=1')).toThrow(/unknown key 'constructor'/);
});
