import type { Command } from 'commander';
import type { Run } from '../command.js';
import { addExport, addImport } from './tape-files.js';

export function addTape(program: Command, run: Run): void {
  const group = program.command('tape').description('Tapes: to files and from them.');
  for (const add of [addExport, addImport]) add(group, run);
}
