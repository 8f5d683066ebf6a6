/** Completion scripts for shells, generated from the program's own definition. */
import type { Command, Option } from 'commander';

export const SHELLS = ['bash', 'zsh', 'fish'] as const;
export type Shell = (typeof SHELLS)[number];

interface Word {
  readonly word: string;
  readonly description: string;
}

/** The words that may follow a partial command line. */
interface Place {
  /** `boxcar profiles apply`. */
  readonly path: string;
  readonly commands: readonly Word[];
  readonly options: readonly Word[];
}

const firstLine = (text: string): string => text.split('\n', 1)[0] ?? '';

const toWord = (option: Option): Word => ({
  word: option.long ?? option.short ?? '',
  description: firstLine(option.description),
});

function placesOf(command: Command, path: string, inherited: readonly Option[]): Place[] {
  const help = command.createHelp();
  // Options with the same name are listed once: each command has its own --help.
  const options = [
    ...new Map(
      [...help.visibleOptions(command), ...inherited].map((option) => [option.flags, option]),
    ).values(),
  ];
  const commands = help.visibleCommands(command);
  const place: Place = {
    path,
    commands: commands.map((child) => ({
      word: child.name(),
      description: firstLine(child.description()),
    })),
    options: options.map(toWord),
  };
  const below = [...inherited, ...command.options];
  return [place, ...commands.flatMap((child) => placesOf(child, `${path} ${child.name()}`, below))];
}

const single = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`;

function writeBash(places: readonly Place[]): string {
  const known = places.slice(1).map(({ path }) => `"${path}"`);
  const cases = places.map(
    ({ path, commands, options }) =>
      `    "${path}") words=${single([...commands, ...options].map(({ word }) => word).join(' '))} ;;`,
  );
  return `# boxcar completion for bash: source <(boxcar completion bash)
_boxcar() {
  local cur="\${COMP_WORDS[COMP_CWORD]}" path="boxcar" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$path \${COMP_WORDS[i]}" in
      ${known.join(' | ')}) path="$path \${COMP_WORDS[i]}" ;;
    esac
  done
  case "$path" in
${cases.join('\n')}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _boxcar boxcar
`;
}

function writeZsh(places: readonly Place[]): string {
  const known = places.slice(1).map(({ path }) => `"${path}"`);
  const describe = ({ word, description }: Word): string =>
    single(`${word.replaceAll(':', '\\:')}:${description}`);
  const cases = places.map(
    ({ path, commands, options }) =>
      `    "${path}") items=(${[...commands, ...options].map(describe).join(' ')}) ;;`,
  );
  return `#compdef boxcar
# boxcar completion for zsh: source <(boxcar completion zsh)
_boxcar() {
  local at="boxcar" word
  local -a items
  for word in "\${(@)words[2,CURRENT-1]}"; do
    case "$at $word" in
      ${known.join(' | ')}) at="$at $word" ;;
    esac
  done
  case "$at" in
${cases.join('\n')}
  esac
  _describe -t boxcar boxcar items
  _files
}
compdef _boxcar boxcar
`;
}

function writeFish(places: readonly Place[]): string {
  const known = places.slice(1).map(({ path }) => single(path));
  const lines = places.flatMap(({ path, commands, options }) => {
    const when = `complete -c boxcar -n ${single(`test (__boxcar_path) = "${path}"`)}`;
    return [
      ...commands.map(({ word, description }) => `${when} -f -a ${single(word)} -d ${single(description)}`),
      ...options.map(
        ({ word, description }) =>
          `${when} -${word.startsWith('--') ? 'l' : 's'} ${single(word.replace(/^--?/, ''))} -d ${single(description)}`,
      ),
    ];
  });
  return `# boxcar completion for fish: boxcar completion fish | source
function __boxcar_path
  set -l at boxcar
  for word in (commandline -opc)[2..-1]
    if contains -- "$at $word" ${known.join(' ')}
      set at "$at $word"
    end
  end
  echo $at
end
${lines.join('\n')}
`;
}

const WRITERS: Readonly<Record<Shell, (places: readonly Place[]) => string>> = {
  bash: writeBash,
  zsh: writeZsh,
  fish: writeFish,
};

/** The completion script of a program for a shell. */
export const writeCompletion = (program: Command, shell: Shell): string =>
  WRITERS[shell](placesOf(program, program.name(), []));
