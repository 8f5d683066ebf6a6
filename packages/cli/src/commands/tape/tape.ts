import type { Command } from 'commander';
import { helpOf, type Run } from '../../command.js';
import { addSessionFlags } from '../../input/session-flags.js';
import { addExport, addImport } from './files.js';
import { addTapeFork, addTapeForks, addTapeMerge } from './forks.js';
import { addTapeInfo, addTapeList, addTapeSearch, addTapeShow } from './read.js';
import { addTapeHandoff, addTapeRepl, addTapeReset, addTapeResume } from './write.js';

/** Each function adds its commands to the group; the order is the order in the help. */
const COMMANDS: readonly ((group: Command, run: Run) => void)[] = [
  addTapeList,
  addTapeShow,
  addTapeInfo,
  addTapeSearch,
  addTapeHandoff,
  addTapeFork,
  addTapeForks,
  addTapeMerge,
  addTapeReset,
  addTapeRepl,
  addTapeResume,
  addExport,
  addImport,
];

/** `tape fork --session` names the new session. */
const takesTape = ({ registeredArguments, options }: Command): boolean =>
  registeredArguments[0]?.name() === 'tape' && options.every(({ long }) => long !== '--session');

export function addTape(program: Command, run: Run): void {
  const group = program.command('tape').addHelpText(
    'after',
    helpOf({
      examples: [
        'boxcar tape ls',
        'boxcar tape show writer-1',
        'boxcar tape search writer-1 "database migration"',
      ],
      negative: 'search: no entry has these words; reset: you declined',
    }),
  );
  for (const add of COMMANDS) add(group, run);
  for (const command of group.commands) if (takesTape(command)) addSessionFlags(command);
}
