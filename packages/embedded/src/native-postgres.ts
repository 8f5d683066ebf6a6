/** The programs of one Postgres release, in a place where the server's account can run them. */
export interface NativePostgres {
  readonly initdb: string;
  readonly postgres: string;
  /** First part of the version; a data folder belongs to one major version. */
  readonly major: string;
}
