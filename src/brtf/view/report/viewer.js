// The viewer: slices of the tensor, drawn from all its numbers, or frames that are pictures already.
(async () => {
  const found = document.getElementById("source");
  if (found === null) return;
  const source = JSON.parse(found.textContent);
  const panels = [...document.querySelectorAll("#viewer figure")].map((figure) => ({
    picture: figure.querySelector("img"),
    name: figure.querySelector("figcaption").textContent,
    strips: [...figure.querySelectorAll(".strip")],
  }));
  const lines = [...document.querySelectorAll("#controls .slide")].map((line) => ({
    line,
    name: line.querySelector(".of").textContent,
    input: line.querySelector("input"),
    output: line.querySelector("output"),
    play: line.querySelector(".play"),
  }));
  const WARM = [222, 94, 32];
  const COOL = [38, 116, 196];
  const DEEP = [16, 140, 128];
  const MISSING = 65535;
  let numbers = null;
  let modes = [source.rows, source.columns];
  let timer = null;

  if (source.shape) {
    const bytes = Uint8Array.from(atob(source.numbers), (letter) => letter.charCodeAt(0));
    const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const codes = new Uint16Array(await new Response(whole).arrayBuffer());
    const size = codes.length / panels.length;
    numbers = panels.map((_, k) => codes.subarray(k * size, (k + 1) * size));
  }
  const labels = (k) => (source.shape ? tips.sides[source.sides[k]].labels : source.names);
  const chosen = () => lines.map(({ input }) => Number(input.value));
  const strides = source.shape?.map((_, mode) => source.shape.slice(mode + 1).reduce((a, b) => a * b, 1));
  const value = (panel, at) => {
    const code = numbers[panel][at.reduce((sum, position, mode) => sum + position * strides[mode], 0)];
    const [low, high] = source.ranges[panel];
    return code === MISSING ? NaN : low + (code / (MISSING - 1)) * (high - low);
  };
  const tint = (number, { colours, low, high }) => {
    if (Number.isNaN(number)) return [128, 128, 128, 64];
    const [least, most] = [Number(low), Number(high)];
    const share = colours === "diverging" ? number / (most || 1) : (number - least) / (most - least || 1);
    // as in pictures.py
    const opacity = Math.round(255 * Math.min(1, colours === "diverging" ? Math.abs(share) : Math.max(0, share)));
    if (colours === "sequential") {
      const shade = Math.round(Math.min(1, Math.max(0, share)) * (tips.palette.length - 1));
      return [...tips.palette[shade], 255];
    }
    return [...(colours === "deep" ? DEEP : share < 0 ? COOL : WARM), opacity];
  };
  const draw = () => {
    const at = chosen();
    const [rows, columns] = modes;
    const [height, width] = [source.shape[rows], source.shape[columns]];
    panels.forEach(({ picture, strips }, panel) => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [width, height];
      const context = canvas.getContext("2d");
      const image = context.createImageData(width, height);
      for (let row = 0; row < height; row++) {
        at[rows] = row;
        for (let column = 0; column < width; column++) {
          at[columns] = column;
          image.data.set(tint(value(panel, at), picture.dataset), 4 * (row * width + column));
        }
      }
      context.putImageData(image, 0, 0);
      picture.src = canvas.toDataURL();
      [picture.width, picture.height] = [width, height];
      picture.classList.toggle("stretched", height / width < 0.5 || height / width > 2);
      picture.classList.toggle("sharp", width <= 160);
      [picture.dataset.rows, picture.dataset.columns] = modes.map((mode) => source.sides[mode]);
      strips.forEach((strip, k) => {
        const side = tips.sides[source.sides[modes[k]]];
        const ends = [side.ends[0], side.name, side.ends[1]];
        strip.classList.toggle("long", `${ends[0]}${ends[2]}`.length > 16);
        [...strip.children].forEach((child, end) => {
          child.textContent = ends[end];
        });
      });
    });
  };
  const show = () => {
    const at = chosen();
    const words = lines
      .map(({ name }, k) => (modes.includes(k) && source.shape ? "" : `${name} = ${labels(k)[at[k]]}`))
      .filter((text) => text !== "" && (source.shape || source.names[0] !== ""))
      .join(", ");
    if (source.shape) draw();
    else panels.forEach(({ picture }, panel) => (picture.src = source.pictures[at[0]][panel]));
    panels.forEach(({ picture, name }) => (picture.alt = words === "" ? name : `${name}, ${words}`));
    lines.forEach(({ input, output }, k) => {
      output.textContent = labels(k)[at[k]];
      input.setAttribute("aria-valuetext", output.textContent);
    });
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    for (const { play } of lines) {
      play.textContent = "▶";
      play.setAttribute("aria-label", "Play");
    }
  };
  for (const { input, play } of lines) {
    input.addEventListener("input", () => {
      stop();
      show();
    });
    play.addEventListener("click", () => {
      const playing = play.textContent !== "▶";
      stop();
      if (playing) return;
      timer = setInterval(() => {
        input.value = (Number(input.value) + 1) % (Number(input.max) + 1);
        show();
      }, 150);
      play.textContent = "❚❚";
      play.setAttribute("aria-label", "Pause");
    });
  }
  const selects = ["rows", "columns"].map((id) => document.getElementById(id));
  selects.forEach((select, k) => {
    if (select === null) return;
    select.value = String(modes[k]); // a reloaded page may keep another choice
    select.addEventListener("change", () => {
      const other = modes[1 - k];
      modes[1 - k] = Number(select.value) === other ? modes[k] : other; // the same twice: change places
      modes[k] = Number(select.value);
      selects[1 - k].value = String(modes[1 - k]);
      stop();
      lines.forEach(({ line, input }, mode) => (line.hidden = modes.includes(mode) || input.max === "0"));
      show();
    });
  });
  panels.forEach(({ picture }) => {
    picture.addEventListener("pointermove", async (event) => {
      const at = tips.place(picture, event);
      const here = chosen();
      [here[modes[0]], here[modes[1]]] = [at.row, at.column];
      const read = (panel, k) => (source.shape ? value(k, here) : tips.read(panel.picture, at));
      const values = await Promise.all(panels.map(read));
      tips.say(`${at.words}\n${panels.map(({ name }, k) => `${name} ${tips.short(values[k])}`).join("\n")}`, event);
    });
    picture.addEventListener("pointerleave", tips.hide);
  });
  show(); // a reloaded page may keep the sliders where they were
})();
