export { beginCommand, type CommaCommand, isCommaCommand, parseCommaCommand } from './comma-command.js';
export { type CommandScan, scanCommands } from './scan.js';
export {
  COMMAND_HELP,
  type CommandCall,
  commandFault,
  readTapeCommand,
  type TapeCommand,
  takeCommands,
  withCommands,
} from './tape-command.js';
