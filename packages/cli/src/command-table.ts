/**
 * The commands of the program, in the order of its help. A module of `commands/` is loaded when its command is run, completed or its help
 * is requested; the program's own help needs only this table.
 */
import type { Command } from 'commander';
import type { Run } from './command.js';

export interface ListedCommand {
  readonly name: string;
  /** Used in the help of the program and of the command. */
  readonly description: string;
  /** True: the command needs the modules of all commands. */
  readonly knowsAll?: boolean;
  /** Loads the function that adds the command with this name to the program. */
  load(): Promise<(program: Command, run: Run) => void>;
}

export const COMMANDS: readonly ListedCommand[] = [
  {
    name: 'dev',
    description: 'For development: a database, a worker, reloaded profiles and plugins, a live log.',
    load: async () => (await import('./commands/dev/dev.js')).addDev,
  },
  {
    name: 'worker',
    description: 'Runs turns, and accepts primitives from the queue boxcar-primitives, until told to stop.',
    load: async () => (await import('./commands/worker/worker.js')).addWorker,
  },
  {
    name: 'serve',
    description: 'Answers HTTP requests under API keys, until told to stop.',
    load: async () => (await import('./commands/serve/serve.js')).addServe,
  },
  {
    name: 'mcp',
    description: 'Serves the Model Context Protocol to the client that starts it, over stdin and stdout.',
    load: async () => (await import('./commands/serve/mcp.js')).addMcp,
  },
  {
    name: 'submit',
    description: 'Submits a primitive. Once the receipt is printed, the submission cannot get lost.',
    load: async () => (await import('./commands/turn/submit.js')).addSubmit,
  },
  {
    name: 'cancel',
    description: 'Cancels a turn or a run with all turns below it, and aborts their model calls.',
    load: async () => (await import('./commands/turn/cancel.js')).addCancel,
  },
  {
    name: 'pack',
    description: 'Packs a context box; with --dry-run, shows the context of a child and writes nothing.',
    load: async () => (await import('./commands/box/pack.js')).addPack,
  },
  {
    name: 'tree',
    description: 'Shows the turns of a run, turn or batch as a tree, with agents and waits.',
    load: async () => (await import('./commands/turn/tree.js')).addTree,
  },
  {
    name: 'budget',
    description: 'Shows and raises the budgets of a run.',
    load: async () => (await import('./commands/turn/budget.js')).addBudget,
  },
  {
    name: 'show',
    description: 'Shows the steps, calls, context and deliverable of a turn.',
    load: async () => (await import('./commands/turn/show.js')).addShow,
  },
  {
    name: 'explain',
    description: 'Shows the exact prompt of a step: each message with its reason, tools, omissions.',
    load: async () => (await import('./commands/turn/explain.js')).addExplain,
  },
  {
    name: 'why',
    description: 'Shows the origin of a text in a prompt: card, box, packing rule, right, author, tokens.',
    load: async () => (await import('./commands/turn/why.js')).addWhy,
  },
  {
    name: 'why-stuck',
    description: 'Shows the chain of waits of a turn, and the event that will end it, if there is one.',
    load: async () => (await import('./commands/turn/why-stuck.js')).addWhyStuck,
  },
  {
    name: 'runs',
    description: 'Runs, newest first.',
    load: async () => (await import('./commands/list/list.js')).addList('runs'),
  },
  {
    name: 'turns',
    description: 'Turns, newest first.',
    load: async () => (await import('./commands/list/list.js')).addList('turns'),
  },
  {
    name: 'agents',
    description: 'Agents, newest first.',
    load: async () => (await import('./commands/list/list.js')).addList('agents'),
  },
  {
    name: 'boxes',
    description: 'Context boxes and tapes, newest first.',
    load: async () => (await import('./commands/list/list.js')).addList('boxes'),
  },
  {
    name: 'tools',
    description: 'The tools that live workers have registered.',
    load: async () => (await import('./commands/list/list.js')).addList('tools'),
  },
  {
    name: 'primitives',
    description: 'The primitives that live workers and queue doors have registered.',
    load: async () => (await import('./commands/list/list.js')).addList('primitives'),
  },
  {
    name: 'profiles',
    description: 'Agent profiles.',
    load: async () => (await import('./commands/profile/profiles.js')).addProfiles,
  },
  {
    name: 'approvals',
    description: 'Calls that wait for the approval of a person, and the decisions.',
    load: async () => (await import('./commands/admin/approvals.js')).addApprovals,
  },
  {
    name: 'keys',
    description: 'Keys for the HTTP server.',
    load: async () => (await import('./commands/admin/keys.js')).addKeys,
  },
  {
    name: 'handoffs',
    description: 'Tasks handed to agents and to other platforms.',
    load: async () => (await import('./commands/admin/handoffs.js')).addHandoffs,
  },
  {
    name: 'webhooks',
    description: 'Callbacks of handoffs: ends and questions, sent to their receivers.',
    load: async () => (await import('./commands/admin/webhooks.js')).addWebhooks,
  },
  {
    name: 'providers',
    description: 'Limits of the providers of models.',
    load: async () => (await import('./commands/admin/providers.js')).addProviders,
  },
  {
    name: 'box',
    description: 'Boxes of cards: make, show and share them.',
    load: async () => (await import('./commands/box/box.js')).addBox,
  },
  {
    name: 'tape',
    description: 'Tapes: entries, anchors, forks, commands, import and export.',
    load: async () => (await import('./commands/tape/tape.js')).addTape,
  },
  {
    name: 'prices',
    description: 'Prices of model calls.',
    load: async () => (await import('./commands/admin/prices.js')).addPrices,
  },
  {
    name: 'policy',
    description: 'Policies: check one, and decide a call by it.',
    load: async () => (await import('./commands/admin/policy.js')).addPolicy,
  },
  {
    name: 'projects',
    description: 'Projects and their limits.',
    load: async () => (await import('./commands/admin/projects.js')).addProjects,
  },
  {
    name: 'erase',
    description: 'Erases the content of cards and of late answers. Ids, hashes and manifests stay.',
    load: async () => (await import('./commands/admin/erase.js')).addErase,
  },
  {
    name: 'purge',
    description: 'Removes the turns, agents, boxes and cards of finished runs.',
    load: async () => (await import('./commands/admin/purge.js')).addPurge,
  },
  {
    name: 'migrate',
    description: "Brings the database to this program's schema, queue tables included.",
    load: async () => (await import('./commands/admin/migrate.js')).addMigrate,
  },
  {
    name: 'health',
    description:
      'Exits with 0 if a worker of this host is alive, by its rows. For health checks of containers.',
    load: async () => (await import('./commands/admin/health.js')).addHealth,
  },
  {
    name: 'doctor',
    description: 'Looks for faults of database, queue, workers and rows, and says what to do.',
    load: async () => (await import('./commands/admin/doctor.js')).addDoctor,
  },
  {
    name: 'completion',
    knowsAll: true,
    description: 'Prints a script that completes commands and options in a shell.',
    load: async () => (await import('./commands/admin/completion.js')).addCompletion,
  },
];
