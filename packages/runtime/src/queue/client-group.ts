/** The clients of a worker, or of all queues. They are closed together, and a closed client never connects again. */

/** The parts of a client of ioredis, for a server or for a cluster, that this file needs. */
interface Client {
  status: string;
  on(event: 'error' | 'close', listener: () => void): unknown;
  connect(): Promise<void>;
  disconnect(reconnect?: boolean): void;
  /** Only on a cluster: the nodes to which the client is connected. */
  nodes?(): readonly unknown[];
}

const isConnected = (client: Client): boolean =>
  client.nodes === undefined ? client.status !== 'reconnecting' : client.nodes().length > 0;

/**
 * Makes a client that was disconnected reach the status `end`, report it, and reject its commands. ioredis does this when
 * a connection of the client ends. A client that waits to connect again has no connection, and BullMQ stops the timers of
 * a worker only after the report.
 */
function reportEnd(client: Client, isClosed: () => boolean): void {
  let isDisconnected = false;
  const connect = client.connect.bind(client);
  client.connect = async () => {
    if (isClosed()) throw new Error('Connection is closed.');
    isDisconnected = false;
    await connect();
  };
  const disconnect = client.disconnect.bind(client);
  client.disconnect = (reconnect = false) => {
    isDisconnected = !reconnect;
    // ioredis immediately ends a client that waits for its first command.
    if (isDisconnected && !isConnected(client)) client.status = 'wait';
    disconnect(reconnect);
  };
  // The status of a client of a cluster is again `close` after each further connection that ends.
  client.on('close', () => {
    if (isDisconnected && client.status === 'close') client.disconnect();
  });
}

export class ClientGroup<C extends Client> {
  readonly #clients = new Set<C>();
  #isClosed = false;

  add(client: C): C {
    this.#clients.add(client);
    client.on('error', () => undefined);
    reportEnd(client, () => this.#isClosed);
    return client;
  }

  close(): void {
    this.#isClosed = true;
    for (const client of this.#clients) client.disconnect();
  }
}
