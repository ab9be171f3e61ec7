import { Fragment, type ReactNode } from "react";

/** Column is a heading and what a row shows under it. A column without a heading holds actions. */
export type Column<T> = readonly [name: string, cell: (row: T) => ReactNode];

interface TableProps<T> {
  caption: string;
  rows: readonly T[];
  id: (row: T) => string | number;
  columns: readonly Column<T>[];
  marked?: (row: T) => boolean;
  /** What belongs to a row and is as wide as the table, shown under it. */
  below?: (row: T) => ReactNode;
}

/** Table is one on wide screens; on narrow ones each row is a list of names and values. The roles stay, though its display changes. */
export function Table<T>({ caption, rows, id, columns, marked, below }: TableProps<T>) {
  return (
    <div className="relative overflow-x-auto" tabIndex={0} role="region" aria-label={caption}>
      <table role="table" className="stack w-full border-collapse text-sm">
        <caption className="sr-only">{caption}</caption>
        <thead role="rowgroup">
          <tr role="row" className="border-b border-line text-left text-soft">
            {columns.map(([name], i) => <th key={i} role="columnheader" scope="col" className="px-2 py-2 font-medium whitespace-nowrap">{name || <span className="sr-only">Actions</span>}</th>)}
          </tr>
        </thead>
        <tbody role="rowgroup">
          {rows.map((row) => {
            const more = below?.(row);
            return (
              <Fragment key={id(row)}>
                <tr role="row" className={`${more ? "" : "border-b border-line last:border-0"} ${marked?.(row) ? "bg-calm-soft" : ""}`}>
                  {columns.map(([name, cell], i) => <td key={i} role="cell" data-name={name} className="px-2 py-2 align-top"><div className="min-w-0">{cell(row)}</div></td>)}
                </tr>
                {more && <tr role="row" className="border-b border-line last:border-0"><td role="cell" colSpan={columns.length} className="px-2 pb-3">{more}</td></tr>}
              </Fragment>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
