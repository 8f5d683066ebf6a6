import { Argument, type Command } from 'commander';
import { EXIT, helpOf, type Run } from '../../command.js';
import { SHELLS, type Shell, writeCompletion } from './completion-script.js';

export function addCompletion(program: Command, run: Run): void {
  program
    .command('completion')
    .addArgument(new Argument('<shell>', 'which shell').choices(SHELLS))
    .addHelpText(
      'after',
      helpOf({
        examples: [
          'source <(boxcar completion bash)                # in ~/.bashrc',
          'source <(boxcar completion zsh)                 # in ~/.zshrc',
          'boxcar completion fish | source                 # in config.fish',
        ],
      }),
    )
    .action((shell: Shell) =>
      run(async (context) => {
        const script = writeCompletion(program, shell);
        context.answer({ shell, script }, () => script.trimEnd());
        return EXIT.success;
      }),
    );
}
