/** Parsers for the values of flags and arguments. This file loads only commander, since every command line needs it. */
import { type Argument, type Command, InvalidArgumentError, type Option } from 'commander';

/** A flag that may be given several times. */
export const collect =
  <T>(read: (text: string) => T) =>
  (text: string, before: readonly T[] | undefined): readonly T[] => [...(before ?? []), read(text)];

/** Requires a text that is not blank. */
export function notBlank(text: string): string {
  if (text.trim() === '') throw new InvalidArgumentError('It must not be blank.');
  return text;
}

/** Returns the text unchanged, for {@link collect}. */
export const same = (text: string): string => text;

function refuse(one: Argument | Option): void {
  if (one.parseArg !== undefined) return;
  if (one.variadic) one.argParser(collect(notBlank));
  else one.argParser(notBlank);
}

/** Rejects blank arguments and option values of a command and its subcommands, except values that have their own parser. */
export function refuseBlank(command: Command): void {
  for (const argument of command.registeredArguments) refuse(argument);
  for (const option of command.options) if (option.required || option.optional) refuse(option);
  for (const child of command.commands) refuseBlank(child);
}
