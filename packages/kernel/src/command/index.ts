export { beginCommand, isCommaCommand } from './comma-command.js';

export {
  COMMAND_HELP,
  commandFault,
  readTapeCommand,
  type TapeCommand,
  takeCommands,
  withCommands,
} from './tape-command.js';
