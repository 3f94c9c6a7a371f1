"""The tasks, cheapest first, one file for each."""

from task import Task

from tasks import digits, glyphs, gpt, language, llama, lora, sources, speech, vit, words

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        digits.FAST,
        glyphs.TASK,
        glyphs.CONVOLUTIONS,
        language.FAST,
        language.TASK,
        vit.TASK,
        vit.MUON,
        gpt.TASK,
        gpt.MUON,
        speech.TASK,
        llama.TASK,
        llama.MUON,
        llama.LARGE,
        llama.LARGE_MUON,
        digits.TASK,
        lora.TASK,
        words.TASK,
        sources.TASK,
    )
}
