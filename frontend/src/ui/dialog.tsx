import { X } from "lucide-react";
import { useEffect, useId, useRef, type ReactNode } from "react";

/** Dialog is the browser's own: it keeps the focus inside, closes on Escape and gives the focus back, and needs no injected style. */
export function Dialog({ title, close, side = false, children }: { title: string; close: () => void; side?: boolean; children: ReactNode }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const shown = dialog.current;
    if (shown && !shown.open) shown.showModal();
    return () => shown?.close();
  }, []);
  const place = side ? "ml-auto mr-0 my-0 h-dvh max-h-none w-full max-w-2xl border-l" : "m-auto w-[calc(100%-2rem)] max-w-lg rounded-lg border";
  return (
    <dialog ref={dialog} aria-labelledby={heading} onCancel={(e) => { e.preventDefault(); close(); }}
      onClick={(e) => { if (e.target === e.currentTarget) close(); }}
      className={`border-line bg-panel p-0 text-ink backdrop:bg-black/50 ${place}`}>
      <div className="flex min-h-full flex-col gap-4 p-4 sm:p-5">
        <header className="flex items-center justify-between gap-3">
          <h2 id={heading} className="min-w-0 text-lg font-bold break-words">{title}</h2>
          <button type="button" onClick={close} aria-label="Close" className="rounded p-2 text-soft hover:text-ink"><X className="size-5" aria-hidden /></button>
        </header>
        {children}
      </div>
    </dialog>
  );
}
